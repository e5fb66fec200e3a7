-- Lengthen a lease on one node; never shorten it, never touch another holder's key.
-- KEYS: 1 lock. ARGV: 1 token, 2 ttl in ms.
-- Returns {1, 'extended'} | {0, 'recreated'} (this node had forgotten; it counts from the next round on)
--       | {0, 'held', ms left}.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return {1, 'extended'}
end
if holder then return {0, 'held', redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {0, 'recreated'}
