-- ARGV: kind, marker. Ends the stream once; `finished` and `failed` are for good.
if is_lost() then return LOST end
touch()
local kind = redis.call('HGET', CONTROL, 'ended')
if kind == 'finished' or kind == 'failed' or kind == ARGV[1] then return {0, kind} end
end_stream(ARGV[1], ARGV[2])
return {1, ARGV[1]}
