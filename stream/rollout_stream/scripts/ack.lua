-- ARGV: group, id …. Answers how many were pending in this group and how many entries went away.
if is_lost() then return LOST end
touch()
local groups = redis.call('SMEMBERS', GROUPS)
local acked, gone = 0, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  if redis.call('XACK', BATCHES, ARGV[1], id) == 1 then
    acked = acked + 1
    local text = redis.call('HGET', PENDING, id)
    if text then
      count('acked:' .. ARGV[1], tonumber(string.match(text, '^%d+')))
      text = text .. ' ' .. ARGV[1]
      if settle(id, text, groups) then gone = gone + 1 else redis.call('HSET', PENDING, id, text) end
    end
  end
end
unlatch()
return {acked, gone, redis.call('HGET', COUNTERS, 'unacked_frames')}
