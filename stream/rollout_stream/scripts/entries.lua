-- What happens to entries: shared by append, ack, bad, drop and unregister. Changes the counters directly.

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

-- Takes the latch of the high watermark away once the stream is down to the low one.
local function unlatch()
  load('')
  local was = S.full
  if is_full() ~= was then redis.call('HSET', COUNTERS, 'full', S.full and '1' or '0', 'full_since', S.full_since) end
end
