-- Runs in one transaction behind `XADD … NOMKSTREAM * b <frame>`: the server has the entry once, without the copies that
-- an argument of a script costs. Here the entry is accounted for, or taken away again.
-- ARGV: slot, attempt, sequence, frames, bytes, want, episodes, sum of returns, sum of lengths, policy version, heartbeat, seed epoch that
-- the batch ends under ('' = any), episode …
if redis.call('EXISTS', BATCHES) == 0 then return LOST end
local slot, attempt, sequence = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local frames, bytes, want = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
load(slot)
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

if is_fenced(attempt) then
  drop_entry(id)
  count('fenced', 1)
  return {'fenced', news('fenced')}
end
if attempt == S.attempt and sequence <= S.sequence then
  drop_entry(id)
  count('duplicates', 1)
  set_heartbeat(slot, ARGV[11])
  local answer = grant(S.sequence + 1, want, false)
  save()
  return {'duplicate', answer}
end
if has_ended() or is_complete() then
  drop_entry(id)
  return {'finished', news('finished')}
end
if ARGV[12] ~= '' and ARGV[12] ~= S.seed_epoch then
  -- The batch in hand is the last of its epoch: its writer ends the trajectories in it, and appends it again.
  drop_entry(id)
  return {'reseed', news('wait')}
end

local granted, random = 0, 0
if S.open == sequence then granted, random = S.granted, S.random end
local left = frames_left()
if left and frames > granted + left then
  drop_entry(id)
  return redis.error_reply('OVERBUDGET ' .. int(frames) .. ' frames where ' .. int(granted) .. ' are reserved and '
    .. int(left) .. ' are left')
end

if is_full() then
  if makes_room() then
    while S.full do
      local oldest = redis.call('XRANGE', BATCHES, '-', '+', 'COUNT', 1)[1]
      if not oldest or oldest[1] == id then break end
      local text = redis.call('HGET', PENDING, oldest[1])
      if text then
        local f, _, s = forget(oldest[1], text)
        count('dropped_frames', f)
        count('dropped_batches', 1)
        count('dropped:' .. s, f)
        load(slot)
        S.full = true
        is_full()
      else
        drop_entry(oldest[1])
      end
    end
  elseif S.on_full == 'DropNewest' then
    drop_entry(id)
    count('dropped_frames', frames)
    count('dropped_batches', 1)
    count('dropped:' .. slot, frames)
    close_reservation()
    take_slot(attempt)
    S.sequence = sequence
    set_heartbeat(slot, ARGV[11])
    local answer = grant(sequence + 1, want, false)
    save()
    return {'dropped', answer}
  else
    drop_entry(id)
    set_heartbeat(slot, ARGV[11])
    save()
    return {'full', news('full')}
  end
end

redis.call('HSET', PENDING, id, int(frames) .. ' ' .. int(bytes) .. ' ' .. slot)
S.frames, S.batches, S.bytes = S.frames + frames, S.batches + 1, S.bytes + bytes
S.unacked_frames, S.unacked_bytes = S.unacked_frames + frames, S.unacked_bytes + bytes
S.unacked_batches, S.own, S.slot_frames = S.unacked_batches + 1, S.own + 1, S.slot_frames + frames
S.policy_version = math.max(S.policy_version, tonumber(ARGV[10]))
redis.call('HSET', COUNTERS, 'last_append', stamp())
take_slot(attempt)
S.sequence = sequence
close_reservation()
-- The frames made with random actions are the first of the grant: what was not made goes on to the next batch.
S.random_left = S.random_left - math.min(random, frames)
if granted > frames then open_reservation(sequence + 1, granted - frames, math.max(0, random - frames)) end

if tonumber(ARGV[7]) > 0 then
  count('episodes', tonumber(ARGV[7]))
  redis.call('HINCRBYFLOAT', COUNTERS, 'return_sum', ARGV[8])
  count('length_sum', tonumber(ARGV[9]))
  for i = 13, #ARGV do redis.call('RPUSH', EPISODES, ARGV[i] .. int(S.frames) .. '}') end
  redis.call('LTRIM', EPISODES, -S.max_episodes, -1)
end
set_heartbeat(slot, ARGV[11])
if is_complete() then end_stream('finished', COMPLETE) end
local answer = grant(sequence + 1, want, true)
save()
return {'ok', answer, id}
