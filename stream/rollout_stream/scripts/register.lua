-- ARGV: group. From now on entries stay until this group has acked them; it begins with the oldest one that is there.
if is_lost() then return LOST end
touch()
if redis.call('SADD', GROUPS, ARGV[1]) == 0 then return 0 end
local made = redis.pcall('XGROUP', 'CREATE', BATCHES, ARGV[1], '0')
if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
touch()
return 1
