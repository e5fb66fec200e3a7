-- Read a record. KEYS: 1 record, 2 marker.
-- Returns {1, record or '', ms left to live, now in ms, marker or '', our identity}.
local marker = redis.pcall('GET', KEYS[2])  -- of another type it is foreign, and the record is read all the same
return {1, redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), now_ms(),
  type(marker) == 'table' and 'FOREIGN' or marker or '', identity()}
