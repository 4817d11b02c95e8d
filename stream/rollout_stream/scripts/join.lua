-- ARGV: slot, attempt. A worker process says that it is there: fences every older attempt.
if is_lost() then return LOST end
load(ARGV[1])
local attempt, known = tonumber(ARGV[2]), S.attempt
if is_fenced(attempt) then return {'fenced', int(known), int(S.sequence), stamp()} end
take_slot(attempt)
save()
return {'ok', int(math.max(known, 0)), int(S.sequence), stamp()}
