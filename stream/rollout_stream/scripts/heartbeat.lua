-- ARGV: slot, attempt, record.
if is_lost() then return LOST end
touch()
if is_fenced(ARGV[1], tonumber(ARGV[2])) then return news('fenced', 0, 0, ARGV[1]) end
set_heartbeat(ARGV[1], ARGV[3])
touch()
if has_ended() or is_complete() then return news('finished', 0, 0, ARGV[1]) end
return news(is_blocked() and 'full' or 'wait', 0, 0, ARGV[1])
