-- ARGV: total ('' = leave, '-' = endless), field, value ….
if is_lost() then return LOST end
touch()
if ARGV[1] ~= '' then redis.call('HSET', BUDGET, 'total', ARGV[1] == '-' and '' or ARGV[1]) end
for i = 2, #ARGV, 2 do redis.call('HSET', CONTROL, ARGV[i], ARGV[i + 1]) end
unlatch()
if is_complete() and not has_ended() then end_stream('finished', COMPLETE) end
return 1
