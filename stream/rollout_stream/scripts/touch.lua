-- ARGV: new time to live in ms ('' = as it is). Renews every key.
if is_lost() then return LOST end
if ARGV[1] ~= '' then
  redis.call('PEXPIRE', CONTROL, ARGV[1])
  redis.call('HSET', CONTROL, 'ttl_ms', ARGV[1])
end
touch(true)
return redis.call('HGET', CONTROL, 'ttl_ms')
