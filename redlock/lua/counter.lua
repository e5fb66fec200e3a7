-- Read a fencing counter for the holder of the lock.
-- KEYS: 1 lock, 2 fencing counter. ARGV: 1 token. Returns {1, counter, our time in ms} | {0, why}.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {0, 'not ours'} end
local counter = redis.call('GET', KEYS[2])
if not counter then return {0, 'no counter'} end
return {1, tonumber(counter), now_ms()}
