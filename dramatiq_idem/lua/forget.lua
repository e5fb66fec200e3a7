-- Begin a new generation of a key: whatever stands there does not count any more.
-- KEYS: 1 record. ARGV: 1 the new generation, 2 retention in ms, 3 'force' to do so while somebody runs it.
-- Returns {1} | {0, 'running', record} | {0, 'gone', the record of that or a higher generation}.
local value = redis.call('GET', KEYS[1])
local record = parse(value)
if record and record.generation >= tonumber(ARGV[1]) then
  local is_done = record.generation == tonumber(ARGV[1]) and record.state == 'forgotten'
  return is_done and {1} or {0, 'gone', value}
end
if record and record.state == 'running' and record.deadline > now_ms() and ARGV[3] ~= 'force' then
  return {0, 'running', value}
end
-- A completion carries one counter for all nodes, which may be some takeovers below what a node had: leap over these.
local fence = math.max(record and record.fence + 1024 or 0, math.floor(now_ms() / 1000) * 1048576)
local tombstone = format('forgotten', ARGV[1], fence, '-', 0, 0, record and record.about or '- -', '')
redis.call('SET', KEYS[1], tombstone, 'PX', ARGV[2])
return {1}
