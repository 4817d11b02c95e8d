-- ARGV: group, id. A reader hands this batch to nobody because it is too old: counted, and acked for the group.
if is_lost() then return LOST end
touch()
local id = ARGV[2]
if redis.call('XACK', BATCHES, ARGV[1], id) == 0 then return 0 end
local text = redis.call('HGET', PENDING, id)
if not text then return 0 end
local frames, slot = string.match(text, '^(%d+) %d+ (%S+)')
if not string.find(text .. ' ', ' ~ ', 1, true) then
  count('dropped_frames', tonumber(frames))
  count('dropped_batches', 1)
  count('dropped:' .. slot, tonumber(frames))
  count('stale:' .. slot, tonumber(frames))
  text = text .. ' ~'
end
text = text .. ' ' .. ARGV[1]
if not settle(id, text, redis.call('SMEMBERS', GROUPS)) then redis.call('HSET', PENDING, id, text) end
unlatch()
return 1
