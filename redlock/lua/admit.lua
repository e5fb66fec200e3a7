-- Write this node's marker, unless something changed since the refusal that asked for it, or that is too long ago: a
-- request that was under way for long may meet a node that has forgotten once more.
-- KEYS: 1 marker. ARGV: 1 the marker as it was seen ('' for none), 2 our identity as it was seen, 3 our time in ms after
-- which it is too late, 4 announced and 5 granted max_ttl in ms, 6 rights, 7 since:
--   'now' (it forgot something), 'boot' (nothing was ever here: it serves since the server started),
--   'keep' (only max_ttl changes, or nothing was forgotten), 'ever' (somebody vouches that nothing was forgotten),
-- 8 hash of the node list.
-- Returns {1, marker, age in ms} | {0, 'changed', marker}.
local now = now_ms()
local seen = redis.call('GET', KEYS[1]) or ''
if seen ~= ARGV[1] or identity() ~= ARGV[2] or now > tonumber(ARGV[3]) then return {0, 'changed', seen} end
local since = now
if ARGV[7] == 'boot' then
  -- uptime counts whole seconds, rounded either way: one second more is the latest start it can mean
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  since = math.min(now, now - uptime * 1000 + 1000)
elseif ARGV[7] == 'keep' then
  since = tonumber(string.match(seen, '^%x+ (%d+)'))
elseif ARGV[7] == 'ever' then
  since = 0
end
local marker = string.format('%s %.0f %s %s %s %s', ARGV[2], since, ARGV[4], ARGV[5], ARGV[6], ARGV[8])
redis.call('SET', KEYS[1], marker)
return {1, marker, now - since}
