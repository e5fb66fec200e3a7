-- Read a node's marker. KEYS: 1 marker. Returns {1, marker or '', our identity, our time in ms}.
return {1, redis.call('GET', KEYS[1]) or '', identity(), now_ms()}
