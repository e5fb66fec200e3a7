-- Lengthen the lease of a running record, for its owner only, and mark it as counted on; never shorten it.
-- KEYS: 1 record. ARGV: 1 token, 2 lease in ms, 3 retention in ms. Returns {1} | {0, record or ''}.
local value = redis.call('GET', KEYS[1])
local record = parse(value)
if not record or record.state ~= 'running' or record.token ~= ARGV[1] then return {0, value or ''} end
local deadline = math.max(record.deadline, now_ms() + ARGV[2])
redis.call('SET', KEYS[1], format('running', record.generation, record.fence, record.token .. '+', record.takeovers,
  deadline, record.about, record.tail), 'PX', ARGV[3])
return {1}
