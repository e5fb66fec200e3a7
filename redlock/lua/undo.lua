-- Take an acquire back, unless an extension counts on its key already: then the attempt was won, and this comes late.
-- KEYS: 1 lock. ARGV: 1 token. Returns {1} if it was there, else {0}.
if redis.call('GET', KEYS[1]) == ARGV[1] then return {redis.call('DEL', KEYS[1])} end
return {0}
