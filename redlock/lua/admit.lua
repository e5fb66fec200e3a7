-- Write this node's marker, unless it changed since the refusal that asked for it.
-- KEYS: 1 marker. ARGV: 1 the marker as it was seen ('' for none), 2 max_ttl in ms, 3 rights, 4 since:
--   'now' (it forgot something), 'boot' (nothing was ever here: it serves since the server started),
--   'keep' (only max_ttl or the rights change), 'ever' (somebody decided that nothing was forgotten). 5 hash of the node list.
-- Returns {1, marker, age in ms} | {0, 'changed', marker}.
local seen = redis.call('GET', KEYS[1]) or ''
if seen ~= ARGV[1] then return {0, 'changed', seen} end
local now = now_ms()
local since = now
if ARGV[4] == 'boot' then
  -- uptime counts whole seconds, rounded either way: one second more is the latest start it can mean
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  since = math.min(now, now - uptime * 1000 + 1000)
elseif ARGV[4] == 'keep' then
  since = tonumber(string.match(seen, '^%x+ (%d+)'))
elseif ARGV[4] == 'ever' then
  since = 0
end
local marker = string.format('%s %.0f %s %s %s', identity(), since, ARGV[2], ARGV[3], ARGV[5])
redis.call('SET', KEYS[1], marker)
return {1, marker, now - since}
