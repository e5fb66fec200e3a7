-- Take a claim back as if it had never been, unless a renewal counts on it already: then the attempt was won, and this
-- comes late. A generation that was begun stays.
-- KEYS: 1 record. ARGV: 1 token. Returns {1} if it was there, else {0}.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
local generation, fence, token, before = string.match(value, '^running (%d+) (%d+) (%S+) %d+ %d+ %S+ %S+ ?(.*)$')
if token ~= ARGV[1] then return {0} end
if before == '' and generation ~= '0' then before = 'free ' .. generation .. ' ' .. fence .. ' - 0 0 - -' end
if before == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], before, 'KEEPTTL') end
return {1}
