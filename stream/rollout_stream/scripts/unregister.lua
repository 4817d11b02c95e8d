-- ARGV: group. Entries wait for it no longer; those that only it had not acked go away.
if is_lost() then return LOST end
touch()
if redis.call('SREM', GROUPS, ARGV[1]) == 0 then return 0 end
redis.call('XGROUP', 'DESTROY', BATCHES, ARGV[1])
local groups = redis.call('SMEMBERS', GROUPS)
local all = redis.call('HGETALL', PENDING)
for i = 1, #all, 2 do
  local text = string.gsub(all[i + 1] .. ' ', ' ' .. ARGV[1]:gsub('%p', '%%%0') .. ' ', ' ')
  redis.call('HSET', PENDING, all[i], (string.gsub(text, ' $', '')))
  settle(all[i], text, groups)
end
unlatch()
return 1
