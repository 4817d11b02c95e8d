-- ARGV: slot, heartbeat. The server had no memory for an append: counted, and answered like a full stream.
if is_lost() then return LOST end
touch()
count('oom', 1)
set_heartbeat(ARGV[1], ARGV[2])
return {'full', news('full', 0, 0, ARGV[1])}
