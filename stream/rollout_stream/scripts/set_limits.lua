-- ARGV: total ('' = leave, '-' = endless), random frames ('' = leave), field, value ….
if is_lost() then return LOST end
touch()
if ARGV[1] ~= '' then redis.call('HSET', BUDGET, 'total', ARGV[1] == '-' and '' or ARGV[1]) end
if ARGV[2] ~= '' then -- what is used up stays used up
  local was = redis.call('HGET', CONTROL, 'random_given')
  local left = tonumber(redis.call('HGET', BUDGET, 'random_left') or '') or 0
  local used = tonumber(was or ARGV[2]) - left
  local given = math.max(used, tonumber(ARGV[2]))
  redis.call('HSET', BUDGET, 'random_left', int(given - used))
  redis.call('HSET', CONTROL, 'init_random_frames', ARGV[2], 'random_given', int(given))
end
for i = 3, #ARGV, 2 do redis.call('HSET', CONTROL, ARGV[i], ARGV[i + 1]) end
unlatch()
if is_complete() and not has_ended() then end_stream('finished', COMPLETE) end
return 1
