-- Compare and delete. KEYS: 1 lock. ARGV: 1 token. Returns {1} if it was still ours, else {0}.
if is_ours(redis.call('GET', KEYS[1])) then return {redis.call('DEL', KEYS[1])} end
return {0}
