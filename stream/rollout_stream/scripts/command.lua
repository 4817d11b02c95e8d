-- ARGV: field, value …. Sets `paused` or `draining` and raises the command epoch if that changed anything.
if is_lost() then return LOST end
touch()
local changed = false
for i = 1, #ARGV, 2 do
  if redis.call('HGET', CONTROL, ARGV[i]) ~= ARGV[i + 1] then
    changed = true
    redis.call('HSET', CONTROL, ARGV[i], ARGV[i + 1])
  end
end
if changed then redis.call('HINCRBY', CONTROL, 'command_epoch', 1) end
return redis.call('HGET', CONTROL, 'command_epoch')
