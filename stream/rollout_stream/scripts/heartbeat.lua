-- ARGV: slot, attempt, record.
if is_lost() then return LOST end
load(ARGV[1])
if is_fenced(tonumber(ARGV[2])) then return news('fenced') end
set_heartbeat(ARGV[1], ARGV[3])
touch()
if has_ended() or is_complete() then return news('finished') end
return news(is_blocked() and 'full' or 'wait')
