-- ARGV: what (data | weights), layout as JSON. The first one sets it; everybody is told what holds.
if is_lost() then return LOST end
touch()
redis.call('HSETNX', LAYOUT, ARGV[1], ARGV[2])
touch()
return redis.call('HGET', LAYOUT, ARGV[1])
