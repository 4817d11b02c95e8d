-- ARGV: slot, attempt. Frees the slot's open reservation and closes the attempt: what it may still send is refused.
if is_lost() then return LOST end
touch()
local slot, attempt = ARGV[1], tonumber(ARGV[2])
local known, sequence = writer_of(slot)
if attempt < known then return 0 end
set_writer(slot, attempt, sequence, true)
local frames = close_reservation(slot)
touch()
return frames
