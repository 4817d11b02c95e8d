-- ARGV: group, id, reason, size, head. Counts an entry that is no frame once, keeps a sample, and acks it for the group.
if is_lost() then return LOST end
touch()
local id = ARGV[2]
if redis.call('XACK', BATCHES, ARGV[1], id) == 0 then return 0 end
local text = redis.call('HGET', PENDING, id)
local frames = text and tonumber(string.match(text, '^%d+')) or 0
if not text or not string.find(text .. ' ', ' ! ', 1, true) then
  redis.call('XADD', BAD, 'MAXLEN', '100', '*', 'id', id, 'reason', ARGV[3], 'size', ARGV[4], 'head', ARGV[5])
  count('bad', 1)
  count('bad_frames', frames)
  if text then
    count('bad:' .. string.match(text, '^%d+ %d+ (%S+)'), 1)
    text = text .. ' !'
  end
end
if text then
  text = text .. ' ' .. ARGV[1]
  if not settle(id, text, redis.call('SMEMBERS', GROUPS)) then redis.call('HSET', PENDING, id, text) end
else
  drop_entry(id)
end
unlatch()
touch()
return 1
