-- Give a claim up, for its owner only. The generation and the fencing counter stay; so does the sign that an earlier run
-- was taken over: it may still be under way.
-- KEYS: 1 record. ARGV: 1 token, 2 'free' or 'failed', 3 retention in ms, 4 reason. Returns {1} | {0, record or ''}.
local value = redis.call('GET', KEYS[1])
local record = parse(value)
if not record or record.state ~= 'running' or record.token ~= ARGV[1] then return {0, value or ''} end
local before = record.tail ~= '' and parse(record.tail) or {takeovers = 0}
local takeovers = math.max(record.takeovers, before.takeovers)
redis.call('SET', KEYS[1], format(ARGV[2], record.generation, record.fence, '-', takeovers, 0, record.about,
  ARGV[4]), 'PX', ARGV[3])
return {1}
