-- Record a completion, whoever holds the key now: it is true that it was done. A completion that stands is kept, unless
-- it is of a lower generation; nothing is written over a higher one.
-- KEYS: 1 record. ARGV: 1 the completed record, 2 its generation, 3 retention in ms.
-- Returns {1} | {0, 'done', the other record that stands} | {0, 'gone', the record of a higher generation}.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then
  local state, generation = string.match(value, '^(%a+) (%d+) %d+ %S+ %d+ %d+ %S+ %S')
  if not state then error('FOREIGN value in a record') end
  if tonumber(generation) > tonumber(ARGV[2]) then return {0, 'gone', value} end
  if state == 'done' and generation == ARGV[2] then return {0, 'done', value} end
end
if value ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end
return {1}
