-- Record a completion, whoever holds the key now: it is true that it was done. A completion that stands is kept, unless
-- it is of a lower generation; nothing is written over a higher one.
-- KEYS: 1 record. ARGV: 1 the completed record, 2 its generation, 3 retention in ms.
-- Returns {1, record} | {0, 'done', the other record that stands} | {0, 'gone', the record of a higher generation}.
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return {1, value} end
local record = parse(value)
if record then
  if record.generation > tonumber(ARGV[2]) then return {0, 'gone', value} end
  if record.state == 'done' and record.generation == tonumber(ARGV[2]) then return {0, 'done', value} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return {1, ARGV[1]}
