-- ARGV: slot, attempt. Frees the slot's open reservation and closes the attempt: what it may still send is refused.
if is_lost() then return LOST end
load(ARGV[1])
local attempt = tonumber(ARGV[2])
if attempt < S.attempt then return 0 end
take_slot(attempt)
S.closed = true
local frames = close_reservation()
save()
return frames
