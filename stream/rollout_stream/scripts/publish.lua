-- ARGV: upload's key prefix, expected newest version ('' = any), idempotency key ('' = none), chunks, record (JSON, open at its end).
-- Turns a complete upload into the next version in one step, and removes old versions that nobody reads.
if is_lost() then return LOST end
touch()
local newest = tonumber(redis.call('HGET', WEIGHTS, 'newest') or 0)
if ARGV[3] ~= '' then
  local done = redis.call('HGET', WEIGHTS, 'k:' .. ARGV[3])
  if done then return {'repeated', done} end
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= newest then return {'conflict', int(newest)} end
local chunks = tonumber(ARGV[4])
for c = 0, chunks - 1 do
  if redis.call('EXISTS', ARGV[1] .. ':' .. c) == 0 then return {'incomplete', int(c)} end
end
local version = int(newest + 1)
local record = ARGV[5] .. ',"version":' .. version .. ',"time":' .. stamp() .. '}'
for c = 0, chunks - 1 do
  redis.call('RENAME', ARGV[1] .. ':' .. c, chunk_key(version, c))
end
local list = versions()
list[#list + 1] = version
redis.call('HSET', WEIGHTS, version, record, 'newest', version)
if ARGV[3] ~= '' then
  redis.call('HSET', WEIGHTS, 'k:' .. ARGV[3], record, 'kv:' .. version, ARGV[3])
end
local old = redis.call('HGET', WEIGHTS, 'kv:' .. int(newest + 1 - 256))
if old then redis.call('HDEL', WEIGHTS, 'kv:' .. int(newest + 1 - 256), 'k:' .. old) end

-- A reader holds a version by a lease with an end, so that one that died holds it for a bounded time.
local held, time = {}, now()
local all = redis.call('HGETALL', WEIGHTS)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'l:' then
    local v, till = string.match(all[i + 1], '^(%d+)@([%d.]+)$')
    if tonumber(till) > time then held[v] = true else redis.call('HDEL', WEIGHTS, all[i]) end
  end
end
local keep, kept = tonumber(redis.call('HGET', CONTROL, 'keep_versions') or 3), {}
for i, v in ipairs(list) do
  if i > #list - keep or held[v] then
    kept[#kept + 1] = v
  else
    for c = 0, chunks_of(v) - 1 do redis.call('UNLINK', chunk_key(v, c)) end
    redis.call('HDEL', WEIGHTS, v)
  end
end
redis.call('HSET', WEIGHTS, 'versions', table.concat(kept, ' '))
touch(true)
return {'ok', record}
