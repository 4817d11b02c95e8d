-- Takes a `suspended` end back.
if is_lost() then return LOST end
touch()
if redis.call('HGET', CONTROL, 'ended') ~= 'suspended' then return 0 end
redis.call('HSET', CONTROL, 'ended', '', 'end', '')
return 1
