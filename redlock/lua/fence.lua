-- Raise a fencing counter for the holder of the lock.
-- KEYS: 1 lock, 2 fencing counter. ARGV: 1 token, 2 value, 3 life of the counter in ms.
-- Returns {1} if the lock is ours and the counter is this value now, else {0, why}.
if not is_ours(redis.call('GET', KEYS[1])) then return {0, 'not ours'} end
if (tonumber(redis.call('GET', KEYS[2])) or 0) > tonumber(ARGV[2]) then return {0, 'larger'} end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {1}
