-- Read a record. KEYS: 1 record, 2 marker.
-- Returns {1, record or '', ms left to live, now in ms, marker or '', our identity}.
return {1, redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), now_ms(), redis.call('GET', KEYS[2]) or '',
  identity()}
