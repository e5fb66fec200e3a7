-- Raise the fencing counter of a running record, for its owner only, and mark it as counted on.
-- KEYS: 1 record. ARGV: 1 token, 2 value. Returns {1} if the claim is ours and the counter is this value, else {0, why}.
local record = parse(redis.call('GET', KEYS[1]))
if not record or record.state ~= 'running' or record.token ~= ARGV[1] then return {0, 'not ours'} end
if record.fence > tonumber(ARGV[2]) then return {0, 'larger'} end
redis.call('SET', KEYS[1], format('running', record.generation, tonumber(ARGV[2]), record.token .. '+',
  record.takeovers, record.deadline, record.about, record.tail), 'KEEPTTL')
return {1}
