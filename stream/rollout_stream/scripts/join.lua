-- ARGV: slot, attempt. A worker process says that it is there: fences every older attempt.
if is_lost() then return LOST end
touch()
local attempt = tonumber(ARGV[2])
local known, sequence = writer_of(ARGV[1])
if is_fenced(ARGV[1], attempt) then return {'fenced', int(known), int(sequence), stamp()} end
set_writer(ARGV[1], attempt, sequence, false)
return {'ok', int(known), int(sequence), stamp()}
