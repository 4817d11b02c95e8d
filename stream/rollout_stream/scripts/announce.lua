-- ARGV: slot, attempt, slot, attempt… Attempts that are about to be started: older ones are fenced, and no number is given twice.
if is_lost() then return LOST end
touch()
local count = 0
for i = 1, #ARGV, 2 do
  local known, sequence = string.match(redis.call('HGET', WRITERS, ARGV[i]) or '', '^(%d+) (%d+)')
  if tonumber(ARGV[i + 1]) > (tonumber(known or '') or -1) then
    redis.call('HSET', WRITERS, ARGV[i], ARGV[i + 1] .. ' ' .. (sequence or '0') .. ' 0')
    count = count + 1
  end
end
return count
