-- Removes every key of the job.
for _, v in ipairs(versions()) do
  for c = 0, chunks_of(v) - 1 do redis.call('UNLINK', chunk_key(v, c)) end
end
return redis.call('UNLINK', unpack(KEYS))
