-- Prepended to every script. All keys of a job come in one fixed order (scripts.py), all in one Cluster slot.
--
-- Memory: a server over its limit refuses commands that may grow it, but only as the first write of a script. So `wake` or `touch`
-- (PEXPIRE only frees) comes first wherever a script must work on a full server. This holds on Redis 6.2 to 8 and Valkey 7.2 to 9,
-- and needs no script flags, which 6.2 does not know.
local BATCHES, COUNTERS, BUDGET, WORKERS, WRITERS, PENDING = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local GROUPS, WEIGHTS, LAYOUT, CONTROL, EPISODES, BAD = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local LAST = '_last' -- group that is moved to the newest entry to learn its id without reading its bytes

-- Lua writes large numbers as 1e+15, and zero times minus one as -0; Redis wants integers.
local function int(x) return x == 0 and '0' or string.format('%.0f', x) end

local clock -- read once: the time does not pass inside of a script
local function now()
  if not clock then
    local t = redis.call('TIME')
    clock = tonumber(t[1]) + tonumber(t[2]) / 1000000
  end
  return clock
end

local function stamp() return string.format('%.3f', now()) end

-- The keys that every job has from its opening to its end. One of them gone: the state is lost.
local function is_lost() return redis.call('EXISTS', BATCHES, COUNTERS, BUDGET, CONTROL) < 4 end
local LOST = redis.error_reply('STATELOST the keys of the job are gone')

local function chunk_key(version, chunk) return WEIGHTS .. ':' .. version .. ':' .. chunk end

local function versions()
  local list = {}
  for v in string.gmatch(redis.call('HGET', WEIGHTS, 'versions') or '', '%d+') do list[#list + 1] = v end
  return list
end

local function chunks_of(version)
  local record = redis.call('HGET', WEIGHTS, version)
  return record and cjson.decode(record).chunks or 0
end

-- Renews every key's time to live. The chunks of the weights are many: they are renewed when a hundredth of it has passed, or `all`.
local function touch(all)
  local held = redis.call('HMGET', CONTROL, 'ttl_ms', 'renewed_ms')
  local ttl = held[1]
  if not ttl then return end
  for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ttl) end
  local ms = now() * 1000
  if all or ms - tonumber(held[2] or 0) > tonumber(ttl) / 100 then
    for _, v in ipairs(versions()) do
      for c = 0, chunks_of(v) - 1 do redis.call('PEXPIRE', chunk_key(v, c), ttl) end
    end
    redis.call('HSET', CONTROL, 'renewed_ms', int(ms))
  end
end

local function drop_entry(id)
  redis.call('XDEL', BATCHES, id)
end

local function count(field, by) redis.call('HINCRBY', COUNTERS, field, int(by)) end
