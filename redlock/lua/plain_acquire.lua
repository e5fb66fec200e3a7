-- SET NX PX as redlock-py does it, without guard and counter; our own earlier request is granted again.
-- KEYS: 1 lock. ARGV: 1 token, 2 ttl in ms. Returns {1} | {0, 'held', ms left}.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) or redis.call('GET', KEYS[1]) == ARGV[1] then return {1} end
return {0, 'held', redis.call('PTTL', KEYS[1])}
