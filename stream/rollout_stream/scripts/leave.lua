-- ARGV: group, consumer. Removes a consumer that holds nothing; one that holds something must stay, its entries would be lost.
if is_lost() then return LOST end
touch()
if #redis.call('XPENDING', BATCHES, ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', BATCHES, ARGV[1], ARGV[2])
return 1
