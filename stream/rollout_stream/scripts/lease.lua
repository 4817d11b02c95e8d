-- ARGV: reader, version (0 = the newest, '' = give the lease back), seconds. Answers the version's record, or nothing.
if is_lost() then return LOST end
touch()
if ARGV[2] == '' then
  redis.call('HDEL', WEIGHTS, 'l:' .. ARGV[1])
  return false
end
local version = ARGV[2] == '0' and (redis.call('HGET', WEIGHTS, 'newest') or '0') or ARGV[2]
local record = string.match(version, '^%d+$') and redis.call('HGET', WEIGHTS, version)
if record then
  redis.call('HSET', WEIGHTS, 'l:' .. ARGV[1], version .. '@' .. string.format('%.3f', now() + tonumber(ARGV[3])))
  touch()
end
return record
