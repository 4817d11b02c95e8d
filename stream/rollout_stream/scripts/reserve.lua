-- ARGV: slot, attempt, sequence, frames wanted.
if is_lost() then return LOST end
touch()
local slot, attempt, sequence, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if is_fenced(slot, attempt) then return news('fenced', 0, 0, slot) end
local known, last = writer_of(slot)
if attempt > known then set_writer(slot, attempt, last, false) end
return grant(slot, sequence, want, false)
