-- Budget, back-pressure and fencing of one slot (`<group>/<index>`): shared by join, reserve, append, release and heartbeat.
-- `load` reads what they need, the functions change it in memory, `save` writes it.
local S

local function load(slot)
  local m = redis.call('HMGET', CONTROL, 'ended', 'paused', 'seed', 'seed_epoch', 'command_epoch', 'on_full',
    'max_unacked_frames', 'max_bytes', 'max_episodes', 'ttl_ms', 'max_staleness', 'on_stale')
  local c = redis.call('HMGET', COUNTERS, 'frames', 'batches', 'bytes', 'unacked_frames', 'unacked_bytes', 'unacked_batches',
    'full', 'policy_version', 'own:' .. slot, 'frames:' .. slot, 'full_since')
  local b = redis.call('HMGET', BUDGET, 'total', 'reserved', 'random_left', 'r:' .. slot)
  local attempt, sequence, closed = string.match(redis.call('HGET', WRITERS, slot) or '', '^(%d+) (%d+) (%d)$')
  local open, granted, random = string.match(b[4] or '', '^(%d+) (%d+) (%d+)$')
  local function number(x) return tonumber(x or '') or 0 end
  S = {
    slot = slot, ended = m[1] or '', paused = m[2] == '1', seed = m[3] or '0', seed_epoch = m[4] or '0', command_epoch = m[5] or '0',
    on_full = m[6], max_frames = tonumber(m[7] or ''), max_bytes = tonumber(m[8] or ''), max_episodes = tonumber(m[9] or '') or 1000,
    frames = number(c[1]), batches = number(c[2]), bytes = number(c[3]), unacked_frames = number(c[4]), unacked_bytes = number(c[5]),
    unacked_batches = number(c[6]), full = c[7] == '1', policy_version = number(c[8]), own = number(c[9]), slot_frames = number(c[10]),
    full_since = c[11] or '0', pace = m[12] == 'Pace' and m[11] or '',
    total = tonumber(b[1] or ''), reserved = number(b[2]), random_left = number(b[3]),
    open = tonumber(open or ''), granted = tonumber(granted or '') or 0, random = tonumber(random or '') or 0, had_open = open and true,
    attempt = tonumber(attempt or '') or -1, sequence = tonumber(sequence or '') or 0, closed = closed == '1',
  }
  redis.call('PEXPIRE', CONTROL, m[10] or '86400000') -- first write: see common.lua
end

local function save()
  redis.call('HSET', COUNTERS, 'frames', int(S.frames), 'batches', int(S.batches), 'bytes', int(S.bytes),
    'unacked_frames', int(S.unacked_frames), 'unacked_bytes', int(S.unacked_bytes), 'unacked_batches', int(S.unacked_batches),
    'full', S.full and '1' or '0', 'full_since', S.full_since, 'policy_version', int(S.policy_version),
    'own:' .. S.slot, int(S.own), 'frames:' .. S.slot, int(S.slot_frames))
  if S.open then
    redis.call('HSET', BUDGET, 'reserved', int(S.reserved), 'random_left', int(S.random_left),
      'r:' .. S.slot, int(S.open) .. ' ' .. int(S.granted) .. ' ' .. int(S.random))
  else
    redis.call('HSET', BUDGET, 'reserved', int(S.reserved), 'random_left', int(S.random_left))
    if S.had_open then redis.call('HDEL', BUDGET, 'r:' .. S.slot) end
  end
  if S.attempt >= 0 then
    redis.call('HSET', WRITERS, S.slot, int(S.attempt) .. ' ' .. int(S.sequence) .. ' ' .. (S.closed and '1' or '0'))
  end
  touch()
end

local function has_ended() return S.ended == 'finished' or S.ended == 'failed' end

local function is_complete() return S.total and S.frames >= S.total end

local function is_fenced(attempt) return attempt < S.attempt or (attempt == S.attempt and S.closed) end

-- A new attempt of the slot; every older one is fenced from here on.
local function take_slot(attempt)
  if attempt > S.attempt then S.attempt, S.closed = attempt, false end
end

local function close_reservation()
  local frames = S.open and S.granted or 0
  S.reserved, S.random_left = S.reserved - frames, S.random_left + (S.open and S.random or 0)
  S.open, S.granted, S.random = nil, 0, 0
  return frames
end

local function open_reservation(sequence, frames, random)
  S.open, S.granted, S.random = sequence, frames, random
  S.reserved, S.random_left = S.reserved + frames, S.random_left - random
end

-- Frames that nobody has appended or reserved; nil if the job has no total.
local function frames_left() return S.total and S.total - S.frames - S.reserved end

-- Above the high watermark, or not yet below the low one (80 %) after having been above. Keeps the latch.
local function is_full()
  local share, was = S.full and 0.8 or 1, S.full
  local function above(value, most)
    if not most then return false end
    if was then return value > share * most end
    return value >= most
  end
  S.full = above(S.unacked_frames, S.max_frames) or above(S.unacked_bytes, S.max_bytes)
  if S.full and not was then S.full_since = stamp() end
  return S.full
end

local function makes_room() return S.on_full == 'TrimAcked' and redis.call('SCARD', GROUPS) == 0 end

-- Whether a full stream holds writers back (it does not if the policy makes room or drops).
local function is_blocked() return is_full() and S.on_full ~= 'DropNewest' and not makes_room() end

-- Eleven strings: what a worker needs to know at every call. See spelling.py, parse_reservation.
local function news(status, frames, random)
  return {
    status, int(frames or 0), int(random or 0), redis.call('HGET', WEIGHTS, 'newest') or '0',
    S.seed, S.seed_epoch, S.command_epoch, int(S.unacked_frames), int(S.own), stamp(), S.pace,
  }
end

-- Grants frames for the batch `sequence` of the slot; `top_up` adds to what is still open from the batch before.
local function grant(sequence, want, top_up)
  if has_ended() or is_complete() then return news('finished') end
  if is_blocked() then return news('full') end
  if S.paused then return news('wait') end
  if S.open and S.open ~= sequence then close_reservation() end
  if S.open and S.granted > want and not top_up then -- asked for less than before: the rest goes back
    local random = math.min(S.random, want)
    close_reservation()
    if want > 0 then open_reservation(sequence, want, random) end
  end
  if not S.open or (top_up and S.granted < want) then
    local left, more = frames_left(), want - S.granted
    if left and left < more then more = left end
    if more > 0 then
      local frames = S.granted + more
      close_reservation()
      open_reservation(sequence, frames, math.min(frames, S.random_left))
    end
  end
  if not S.open then return news('wait') end
  return news('granted', S.granted, S.random)
end

local function end_stream(kind, marker)
  redis.call('XADD', BATCHES, '*', 'e', marker)
  redis.call('HSET', CONTROL, 'ended', kind, 'end', marker)
end
local COMPLETE = '{"kind":"finished","reason":"TotalFrames","message":""}'

local function set_heartbeat(slot, text)
  if text ~= '' then redis.call('HSET', WORKERS, slot, text .. stamp() .. '}') end
end
