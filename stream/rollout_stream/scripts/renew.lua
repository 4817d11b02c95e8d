-- ARGV: group, consumer, idle ms, delivery count ('' = as it is), id …. Sets the idle time of entries that this consumer still holds
-- (0: it is alive; large: anybody may take them). Answers those that it holds no more.
if is_lost() then return LOST end
touch()
local lost = {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local held = redis.call('XPENDING', BATCHES, ARGV[1], id, id, 1, ARGV[2])[1]
  if not held then
    lost[#lost + 1] = id
  elseif ARGV[4] == '' then
    redis.call('XCLAIM', BATCHES, ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'JUSTID')
  else
    redis.call('XCLAIM', BATCHES, ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
  end
end
return lost
