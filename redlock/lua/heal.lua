-- Put a lease back on a node that has forgotten it, with its fencing counter, while it is certain to be valid.
-- KEYS: 1 lock, 2 fencing counter. ARGV: 1 token, 2 our time in ms until which the lease is valid, 3 fencing token or 0,
-- 4 life of the counter in ms. Returns {1} | {0, 'late'} | {0, 'held'}.
local left = tonumber(ARGV[2]) - now_ms()
if left <= 0 then return {0, 'late'} end
if not redis.call('SET', KEYS[1], ARGV[1] .. '+', 'NX', 'PX', left) then return {0, 'held'} end
if (tonumber(redis.call('GET', KEYS[2])) or 0) < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
return {1}
