-- Claim a key on one node: running, unless it is done or somebody else runs it.
-- KEYS: 1 record, 2 marker. ARGV: 1 token, 2 lease in ms, 3 guard, 4 retention in ms, 5 "<fingerprint> <message id>",
-- 6 the least generation: what stands below it was forgotten on other nodes already, 7 (where it is given at all) that a
-- failure with a reason is wanted instead of a further run.
-- Returns {1, rights, generation, fence, takeovers, 1 if a run was ever taken over else 0, longest}
--       | {0, 'busy', ms left, record, rights, longest} | {0, 'failed', rights, record, longest}
--       | {0, 'done', rights, record, longest or the refusal}
--       | {-1, reason, ms left, marker, identity, now, generation}.
-- rights 'leases': this node cannot speak for what it has forgotten.
local now = now_ms()
local value = redis.call('GET', KEYS[1])
local record = parse(value)
local floor = tonumber(ARGV[6])
if record and record.generation < floor then
  record = {state = 'forgotten', generation = floor, fence = record.fence}
  value = format('forgotten', floor, record.fence, '-', 0, 0, '- -', '')
end
local refusal, longest, rights, least = admission(KEYS[2], now, ARGV[2], ARGV[3])
if record and record.state == 'done' then
  if not refusal then return {0, 'done', rights, value, longest} end
  table.remove(refusal, 1)
  return {0, 'done', 'leases', value, refusal}
end
if refusal then
  refusal[7] = record and record.generation or 0
  return refusal
end

if record and record.state == 'failed' and #ARGV > 6 and record.tail ~= '' then
  return {0, 'failed', rights, value, longest}
end
local takeovers, before, is_contested = 0, value or '', record and (record.takeovers or 0) > 0
if record and record.state == 'running' then
  if record.token == ARGV[1] then  -- every attempt has a token of its own and asks each node once
    return redis.error_reply('TWICE this server has voted already: it is listed under two names')
  end
  if record.deadline > now then return {0, 'busy', record.deadline - now, value, rights, longest} end
  takeovers, is_contested = record.takeovers + 1, true
  before = format('running', record.generation, record.fence, record.token .. record.mark,
    record.takeovers, record.deadline, record.about, '')
end
-- A counter that starts anew starts from the clock, coarse enough that the nodes agree.
local fence = math.max(record and record.fence + 1 or math.floor(now / 1000) * 1048576, least)
local generation = record and record.generation or floor
local claimed = format('running', generation, fence, ARGV[1], takeovers, now + ARGV[2], ARGV[5], before)
redis.call('SET', KEYS[1], claimed, 'PX', ARGV[4])
return {1, rights, generation, fence, takeovers, is_contested and 1 or 0, longest}
