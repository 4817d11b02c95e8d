-- ARGV: slot, attempt, sequence, frames wanted.
if is_lost() then return LOST end
load(ARGV[1])
local attempt = tonumber(ARGV[2])
if is_fenced(attempt) then return news('fenced') end
take_slot(attempt)
local answer = grant(tonumber(ARGV[3]), tonumber(ARGV[4]), false)
save()
return answer
