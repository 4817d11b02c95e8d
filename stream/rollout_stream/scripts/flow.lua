-- Budget, back-pressure and fencing: shared by join, reserve, append, release, ack and heartbeat.

local function has_ended()
  local kind = redis.call('HGET', CONTROL, 'ended')
  return kind == 'finished' or kind == 'failed'
end

-- attempt, last sequence, closed of a slot; -1, 0, false if it never wrote.
local function writer_of(slot)
  local text = redis.call('HGET', WRITERS, slot)
  if not text then return -1, 0, false end
  local attempt, sequence, closed = string.match(text, '^(%d+) (%d+) (%d)$')
  return tonumber(attempt), tonumber(sequence), closed == '1'
end

local function set_writer(slot, attempt, sequence, closed)
  redis.call('HSET', WRITERS, slot, int(attempt) .. ' ' .. int(sequence) .. ' ' .. (closed and '1' or '0'))
end

local function is_fenced(slot, attempt)
  local known, _, closed = writer_of(slot)
  return attempt < known or (attempt == known and closed)
end

-- sequence, frames, random frames of a slot's open reservation, or nil.
local function reservation_of(slot)
  local text = redis.call('HGET', BUDGET, 'r:' .. slot)
  if not text then return nil end
  local sequence, frames, random = string.match(text, '^(%d+) (%d+) (%d+)$')
  return tonumber(sequence), tonumber(frames), tonumber(random)
end

local function close_reservation(slot)
  local _, frames, random = reservation_of(slot)
  if not frames then return 0 end
  redis.call('HDEL', BUDGET, 'r:' .. slot)
  redis.call('HINCRBY', BUDGET, 'reserved', int(-frames))
  redis.call('HINCRBY', BUDGET, 'random_left', int(random))
  return frames
end

local function open_reservation(slot, sequence, frames, random)
  redis.call('HSET', BUDGET, 'r:' .. slot, int(sequence) .. ' ' .. int(frames) .. ' ' .. int(random))
  redis.call('HINCRBY', BUDGET, 'reserved', int(frames))
  redis.call('HINCRBY', BUDGET, 'random_left', int(-random))
end

-- Frames that nobody has appended or reserved; nil if the job has no total.
local function frames_left()
  local b = redis.call('HMGET', BUDGET, 'total', 'reserved')
  if not b[1] or b[1] == '' then return nil end
  return tonumber(b[1]) - tonumber(redis.call('HGET', COUNTERS, 'frames')) - tonumber(b[2])
end

local function is_complete()
  local total = redis.call('HGET', BUDGET, 'total')
  return total and total ~= '' and tonumber(redis.call('HGET', COUNTERS, 'frames')) >= tonumber(total)
end

-- Above the high watermark, or not yet below the low one (80 %) after having been above. Keeps the latch.
local function is_full()
  local c = redis.call('HMGET', COUNTERS, 'unacked_frames', 'unacked_bytes', 'full')
  local m = redis.call('HMGET', CONTROL, 'max_unacked_frames', 'max_bytes')
  local frames, bytes, latched = tonumber(c[1]), tonumber(c[2]), c[3] == '1'
  local max_frames, max_bytes = tonumber(m[1] or ''), tonumber(m[2] or '')
  local share = latched and 0.8 or 1
  local full = false
  if latched then
    full = (max_frames and frames > share * max_frames) or (max_bytes and bytes > share * max_bytes)
  else
    full = (max_frames and frames >= max_frames) or (max_bytes and bytes >= max_bytes)
  end
  full = full and true or false
  if full ~= latched then
    redis.call('HSET', COUNTERS, 'full', full and '1' or '0')
    if full then redis.call('HSET', COUNTERS, 'full_since', stamp()) end
  end
  return full
end

-- Whether a full stream holds writers back (it does not if the policy makes room or drops).
local function is_blocked()
  if not is_full() then return false end
  local policy = redis.call('HGET', CONTROL, 'on_full')
  if policy == 'DropNewest' then return false end
  if policy == 'TrimAcked' and redis.call('SCARD', GROUPS) == 0 then return false end
  return true
end

-- Ten strings: what a worker needs to know at every call. See calls.py, parse_reservation.
local function news(status, frames, random, slot)
  local c = redis.call('HMGET', CONTROL, 'seed', 'seed_epoch', 'command_epoch')
  local own = redis.call('HMGET', COUNTERS, 'unacked_frames', 'own:' .. slot)
  return {
    status, int(frames), int(random), redis.call('HGET', WEIGHTS, 'newest') or '0',
    c[1] or '0', c[2] or '0', c[3] or '0', own[1] or '0', own[2] or '0', stamp(),
  }
end

-- Grants frames for the batch `sequence` of a slot; `top_up` adds to what is still open from the batch before.
local function grant(slot, sequence, want, top_up)
  if has_ended() or is_complete() then return news('finished', 0, 0, slot) end
  if is_blocked() then return news('full', 0, 0, slot) end
  if redis.call('HGET', CONTROL, 'paused') == '1' then return news('wait', 0, 0, slot) end
  local open, frames, random = reservation_of(slot)
  if open and (open ~= sequence or (frames > want and not top_up)) then
    close_reservation(slot)
    if open == sequence then -- asked for less than before: the rest goes back
      frames = want
      random = math.min(random, want)
      if frames > 0 then open_reservation(slot, sequence, frames, random) end
    else
      open, frames, random = nil, nil, nil
    end
  end
  if not open or (top_up and frames < want) then
    local had = frames or 0
    local left = frames_left()
    local more = want - had
    if left and left < more then more = left end
    if more > 0 then
      if open then close_reservation(slot) end
      frames = had + more
      random = math.min(frames, tonumber(redis.call('HGET', BUDGET, 'random_left')))
      open_reservation(slot, sequence, frames, random)
    end
  end
  if not frames or frames <= 0 then return news('wait', 0, 0, slot) end
  return news('granted', frames, random, slot)
end

-- Gives back the space of an entry: everything that counts it, in one step.
local function forget(id, text)
  local frames, bytes, slot = string.match(text, '^(%d+) (%d+) (%S+)')
  redis.call('XDEL', BATCHES, id)
  redis.call('HDEL', PENDING, id)
  count('unacked_frames', -tonumber(frames))
  count('unacked_bytes', -tonumber(bytes))
  count('unacked_batches', -1)
  count('own:' .. slot, -1)
  return tonumber(frames), tonumber(bytes), slot
end

-- Removes an entry if every registered group has acked it. `text` is its record in PENDING.
local function settle(id, text, groups)
  if #groups == 0 then return false end
  for _, group in ipairs(groups) do
    if not string.find(text .. ' ', ' ' .. group .. ' ', 1, true) then return false end
  end
  local frames, bytes = forget(id, text)
  count('acked_frames', frames)
  count('acked_bytes', bytes)
  count('acked_batches', 1)
  return true
end

local function end_stream(kind, marker)
  redis.call('XADD', BATCHES, '*', 'e', marker)
  redis.call('HSET', CONTROL, 'ended', kind, 'end', marker)
end

local function set_heartbeat(slot, text)
  if text ~= '' then redis.call('HSET', WORKERS, slot, text .. stamp() .. '}') end
end
