-- ARGV: group, consumer, idle ms, most entries, own held ids …. Takes entries over whose reader has not renewed them, and those that were
-- sent to this consumer but never arrived. Answers {id, times delivered} each; the reader fetches the bytes.
if is_lost() then return LOST end
touch()
local held, taken, most = {}, {}, tonumber(ARGV[4])
for i = 5, #ARGV do held[ARGV[i]] = true end
local function take(entry)
  if #taken >= most or held[entry[1]] then return end
  local claimed = redis.call('XCLAIM', BATCHES, ARGV[1], ARGV[2], 0, entry[1], 'RETRYCOUNT', int(entry[4] + 1), 'JUSTID')
  if #claimed > 0 then
    held[entry[1]] = true
    taken[#taken + 1] = {entry[1], int(entry[4] + 1)}
  else
    redis.call('XACK', BATCHES, ARGV[1], entry[1])
  end
end
for _, entry in ipairs(redis.call('XPENDING', BATCHES, ARGV[1], '-', '+', most + #ARGV, ARGV[2])) do take(entry) end
for _, entry in ipairs(redis.call('XPENDING', BATCHES, ARGV[1], 'IDLE', ARGV[3], '-', '+', most + #ARGV)) do take(entry) end
return taken
