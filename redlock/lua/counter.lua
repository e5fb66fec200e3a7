-- Read a fencing counter for the holder of the lock, where this node may vote: before, it may have lost a part of it. What
-- it may have lost is leapt over, here as in an acquire, and that has to stand: the next token must be larger.
-- KEYS: 1 lock, 2 marker, 3 fencing counter. ARGV: 1 token, 2 guard, 3 life of the counter in ms.
-- Returns {1, counter, our time in ms} | {0, why}.
if not is_ours(redis.call('GET', KEYS[1])) then return {0, 'not ours'} end
local now = now_ms()
local refusal, _, _, least = admission(KEYS[2], now, 0, ARGV[2])
if refusal then return {0, 'may not vote'} end
local counter = tonumber(redis.call('GET', KEYS[3]))
if not counter then return {0, 'no counter'} end
if counter < least then
  counter = least
  redis.call('SET', KEYS[3], string.format('%d', counter), 'PX', ARGV[3])
end
return {1, counter, now}
