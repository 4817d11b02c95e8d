-- ARGV: seed, expected epoch ('' = any).
if is_lost() then return LOST end
touch()
local epoch = redis.call('HGET', CONTROL, 'seed_epoch')
if ARGV[2] ~= '' and ARGV[2] ~= epoch then return {0, redis.call('HGET', CONTROL, 'seed'), epoch} end
redis.call('HSET', CONTROL, 'seed', ARGV[1])
return {1, ARGV[1], int(redis.call('HINCRBY', CONTROL, 'seed_epoch', 1))}
