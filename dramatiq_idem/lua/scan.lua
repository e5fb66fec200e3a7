-- Read some records for a copy. ARGV: 1 cursor, 2 pattern, 3 about how many. KEYS: 1 marker.
-- Returns {1, next cursor, marker or '', {key, record, ms left to live, ...}}.
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local records = {}
for _, key in ipairs(found[2]) do
  local left = redis.call('PTTL', key)
  local value = left > 0 and redis.pcall('GET', key)
  if type(value) == 'string' then  -- anything else is not ours
    records[#records + 1] = key
    records[#records + 1] = value
    records[#records + 1] = left
  end
end
return {1, found[1], redis.call('GET', KEYS[1]) or '', records}
