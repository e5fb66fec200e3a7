-- Lengthen a lease on one node, and mark it as counted on; never shorten it, never touch another holder's key, never
-- bring it back.
-- KEYS: 1 lock, 2 marker. ARGV: 1 token, 2 ttl in ms, 3 guard.
-- Returns {1, 'extended'} | {0, 'gone', our time in ms} | {0, 'held', ms left} | {0, 'max_ttl', the longest ttl here}.
local holder = redis.call('GET', KEYS[1])
if not holder then return {0, 'gone', now_ms()} end
if not is_ours(holder) then return {0, 'held', redis.call('PTTL', KEYS[1])} end
-- A lease that outlives max_ttl would outlive the wait of a node that forgets; no marker means that it just has.
local max_ttl = ARGV[3] ~= '0' and string.match(redis.call('GET', KEYS[2]) or '', '^%x+ %d+ %d+ (%d+)')
if max_ttl and tonumber(ARGV[2]) > tonumber(max_ttl) then return {0, 'max_ttl', max_ttl} end
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
-- Where there is no memory left PEXPIRE is allowed all the same, and a script that has written may go on.
if holder == ARGV[1] then redis.call('SET', KEYS[1], ARGV[1] .. '+', 'KEEPTTL') end
return {1, 'extended'}
