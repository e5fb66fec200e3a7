-- Grant a lease on one node, or say why not. The node writes nothing unless it grants.
-- KEYS: 1 lock, 2 marker, 3 fencing counter. ARGV: 1 token, 2 ttl in ms, 3 guard, 4 life of the counter in ms.
-- longest: "<announced>/<granted>" max_ttl of this node in ms, empty without the guard.
-- Returns {1, counter, now in ms, longest} | {0, 'held', ms left, longest} | {-1, reason, ms left, marker}.
local now = now_ms()
local refusal, longest, _, least = admission(KEYS[2], now, ARGV[2], ARGV[3])
if refusal then return refusal end

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then  -- every attempt has a token of its own and asks each node once
  return redis.error_reply('TWICE this server has voted already: it is listed under two names')
end
if holder then return {0, 'held', redis.call('PTTL', KEYS[1]), longest} end

redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- A counter that starts anew starts from the clock, coarse enough that the nodes agree.
local known = tonumber(redis.call('GET', KEYS[3]))
local counter = math.max(known and known + 1 or math.floor(now / 1000) * 1048576, least)
redis.call('SET', KEYS[3], string.format('%d', counter), 'PX', ARGV[4])
return {1, counter, now, longest}
