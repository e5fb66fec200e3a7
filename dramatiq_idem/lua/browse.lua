-- Read some records for people, foreign values too. ARGV: 1 cursor, 2 pattern, 3 about how many, 4 most bytes of each.
-- Returns {1, next cursor, {key, the beginning of its value, or '' where it is no text, ...}}. A copy reads with `scan`.
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local records = {}
for _, key in ipairs(found[2]) do
  if redis.call('PTTL', key) ~= -2 then
    local value = redis.pcall('GET', key)
    records[#records + 1] = key
    records[#records + 1] = type(value) == 'string' and string.sub(value, 1, ARGV[4]) or ''
  end
end
return {1, found[1], records}
