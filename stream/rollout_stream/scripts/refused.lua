-- ARGV: slot, heartbeat. The server had no memory for an append: counted, and answered like a full stream.
if is_lost() then return LOST end
load(ARGV[1])
count('oom', 1)
set_heartbeat(ARGV[1], ARGV[2])
touch()
return {'full', news('full')}
