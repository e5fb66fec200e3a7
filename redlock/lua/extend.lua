-- Lengthen a lease on one node; never shorten it, never touch another holder's key.
-- KEYS: 1 lock, 2 fencing counter. ARGV: 1 token, 2 ttl in ms, 3 'heal' to put a missing key back, or 'keep' not to.
-- Returns {1, 'extended', counter} | {0, 'recreated'} (this node had forgotten; it counts from the next round on)
--       | {0, 'gone'} | {0, 'held', ms left}.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return {1, 'extended', ARGV[3] == 'keep' and tonumber(redis.call('GET', KEYS[2]) or 0) or 0}
end
if holder then return {0, 'held', redis.call('PTTL', KEYS[1])} end
if ARGV[3] == 'keep' then return {0, 'gone'} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {0, 'recreated'}
