-- Read a node's marker, and whether it holds anything else of the namespace.
-- KEYS: 1 marker. ARGV: 1 pattern of the namespace's keys. Returns {1, marker or '', our identity, our time in ms, 0 or 1}.
local cursor, rounds, found = '0', 0, 0
repeat
  local page = redis.pcall('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  if page.err then break end  -- a user may do without this right
  cursor, rounds = page[1], rounds + 1
  for _, key in ipairs(page[2]) do
    if key ~= KEYS[1] then found = 1 end
  end
until cursor == '0' or found == 1 or rounds == 1000
local marker = redis.pcall('GET', KEYS[1])  -- a value of another type is a marker of nobody
return {1, type(marker) == 'table' and 'FOREIGN' or marker or '', identity(), now_ms(), found}
