-- ARGV: uid, ttl ms, total ('' = endless), random frames, number of control fields, field, value …, group …
if redis.call('EXISTS', COUNTERS, BUDGET, CONTROL, BATCHES) > 0 then
  if is_lost() then return LOST end
  if redis.call('HGET', CONTROL, 'job') ~= ARGV[1] then
    return redis.error_reply('FOREIGN another job (' .. (redis.call('HGET', CONTROL, 'job') or '?') .. ') has these keys')
  end
  touch(true)
  return 0
end
-- First, because every server refuses it when it has no memory: then nothing is made at all.
redis.call('HSET', COUNTERS, 'frames', 0, 'batches', 0, 'bytes', 0, 'unacked_frames', 0, 'unacked_bytes', 0,
  'unacked_batches', 0, 'full', 0, 'episodes', 0, 'return_sum', 0, 'length_sum', 0)
redis.call('XGROUP', 'CREATE', BATCHES, LAST, '$', 'MKSTREAM')
redis.call('HSET', BUDGET, 'total', ARGV[3], 'reserved', 0, 'random_left', ARGV[4])
local fields = tonumber(ARGV[5])
redis.call('HSET', CONTROL, 'job', ARGV[1], 'ttl_ms', ARGV[2], 'seed_epoch', 0, 'command_epoch', 0, 'paused', 0,
  'draining', 0, 'ended', '', 'opened', stamp(), unpack(ARGV, 6, 5 + 2 * fields))
for i = 6 + 2 * fields, #ARGV do
  redis.call('SADD', GROUPS, ARGV[i])
  redis.call('XGROUP', 'CREATE', BATCHES, ARGV[i], '0')
end
if ARGV[3] ~= '' and tonumber(ARGV[3]) == 0 then end_stream('finished', COMPLETE) end
touch(true)
return 1
