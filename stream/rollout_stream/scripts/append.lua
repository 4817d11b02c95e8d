-- Runs in one transaction behind `XADD … NOMKSTREAM * b <frame>`: the server has the entry once, without the copies that
-- an argument of a script costs. Here the entry is accounted for, or taken away again.
-- ARGV: slot, attempt, sequence, frames, bytes, want, episodes, sum of returns, sum of lengths, policy version, heartbeat, seed epoch that
-- the batch ends under ('' = any), episode …
if redis.call('EXISTS', BATCHES) == 0 then return LOST end
touch()
redis.call('XGROUP', 'SETID', BATCHES, LAST, '$')
local id
for _, group in ipairs(redis.call('XINFO', 'GROUPS', BATCHES)) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields['name'] == LAST then id = fields['last-delivered-id'] end
end
if is_lost() then
  drop_entry(id)
  return LOST
end
local slot, attempt, sequence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local frames, bytes, want = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local known, last = writer_of(slot)

if is_fenced(slot, attempt) then
  drop_entry(id)
  count('fenced', 1)
  return {'fenced', news('fenced', 0, 0, slot)}
end
if attempt == known and sequence <= last then
  drop_entry(id)
  count('duplicates', 1)
  set_heartbeat(slot, ARGV[11])
  return {'duplicate', grant(slot, last + 1, want, false)}
end
if has_ended() or is_complete() then
  drop_entry(id)
  return {'finished', news('finished', 0, 0, slot)}
end

if ARGV[12] ~= '' and ARGV[12] ~= redis.call('HGET', CONTROL, 'seed_epoch') then
  -- The batch in hand is the last of its epoch: its writer ends the trajectories in it, and appends it again.
  drop_entry(id)
  return {'reseed', news('wait', 0, 0, slot)}
end

local open, granted, random = reservation_of(slot)
if open and open ~= sequence then granted, random = 0, 0 end
granted, random = granted or 0, random or 0
local left = frames_left()
if left and frames > granted + left then
  drop_entry(id)
  return redis.error_reply('OVERBUDGET ' .. int(frames) .. ' frames where ' .. int(granted) .. ' are reserved and '
    .. int(left) .. ' are left')
end

if is_full() then
  local policy = redis.call('HGET', CONTROL, 'on_full')
  if policy == 'TrimAcked' and redis.call('SCARD', GROUPS) == 0 then
    while is_full() do
      local oldest = redis.call('XRANGE', BATCHES, '-', '+', 'COUNT', 1)[1]
      if not oldest or oldest[1] == id then break end
      local text = redis.call('HGET', PENDING, oldest[1])
      if text then
        local f, _, s = forget(oldest[1], text)
        count('dropped_frames', f)
        count('dropped_batches', 1)
        count('dropped:' .. s, f)
      else
        drop_entry(oldest[1])
      end
    end
  elseif policy == 'DropNewest' then
    drop_entry(id)
    count('dropped_frames', frames)
    count('dropped_batches', 1)
    count('dropped:' .. slot, frames)
    close_reservation(slot)
    set_writer(slot, attempt, sequence, false)
    set_heartbeat(slot, ARGV[11])
    return {'dropped', grant(slot, sequence + 1, want, false)}
  else
    drop_entry(id)
    set_heartbeat(slot, ARGV[11])
    return {'full', news('full', 0, 0, slot)}
  end
end

redis.call('HSET', PENDING, id, int(frames) .. ' ' .. int(bytes) .. ' ' .. slot)
count('frames', frames)
count('batches', 1)
count('bytes', bytes)
count('unacked_frames', frames)
count('unacked_bytes', bytes)
count('unacked_batches', 1)
count('own:' .. slot, 1)
count('frames:' .. slot, frames)
redis.call('HSET', COUNTERS, 'last_append', stamp())
set_writer(slot, attempt, sequence, false)
close_reservation(slot)
if open == sequence then
  -- The frames made with random actions are the first of the grant: what was not made goes on to the next batch.
  redis.call('HINCRBY', BUDGET, 'random_left', int(-math.min(random, frames)))
  if granted > frames then open_reservation(slot, sequence + 1, granted - frames, math.max(0, random - frames)) end
end

if tonumber(ARGV[7]) > 0 then
  count('episodes', tonumber(ARGV[7]))
  redis.call('HINCRBYFLOAT', COUNTERS, 'return_sum', ARGV[8])
  count('length_sum', tonumber(ARGV[9]))
  local total = redis.call('HGET', COUNTERS, 'frames')
  for i = 13, #ARGV do redis.call('RPUSH', EPISODES, ARGV[i] .. total .. '}') end
  redis.call('LTRIM', EPISODES, -tonumber(redis.call('HGET', CONTROL, 'max_episodes') or 1000), -1)
end
local newest = tonumber(ARGV[10])
if newest > tonumber(redis.call('HGET', COUNTERS, 'policy_version') or 0) then
  redis.call('HSET', COUNTERS, 'policy_version', ARGV[10])
end
set_heartbeat(slot, ARGV[11])
if is_complete() then end_stream('finished', '{"kind":"finished","reason":"TotalFrames","message":""}') end
local answer = {'ok', grant(slot, sequence + 1, want, true), id}
touch()
return answer
