-- Read a node's marker. KEYS: 1 marker. Returns {1, marker or ''}.
return {1, redis.call('GET', KEYS[1]) or ''}
