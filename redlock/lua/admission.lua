-- Shared head of the scripts that may grant something: may this node vote?
-- A node that forgot (restarted empty, flushed, replaced by a replica) must not vote before every lease that it
-- may have forgotten has ended. Its marker says which server, under which identity, votes since when.
-- marker: "<identity> <since, ms> <announced> <granted> <records|leases> <hash of the node list>"; the two in between are
-- max_ttl in ms: how long this node waits after it forgot, and how long the leases may be that it grants. A raise is
-- announced on all nodes before any node grants by it.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The replication id changes at every restart and every promotion; a connection survives both, the run id one of them.
local function identity()
  local info = redis.pcall('INFO', 'replication')
  if type(info) == 'table' then error('INFO is refused: ' .. (info.err or 'no text')) end
  local _, colon = string.find(info, 'master_replid:', 1, true)  -- plain: a pattern would be tried at each letter
  return string.sub(info, colon + 1, colon + 40)
end

-- Returns nil, "<announced>/<granted>", the rights and the least that a fencing counter may be where the node may vote,
-- else the refusal to answer:
-- {-1, reason, ms left or 0, the marker as it was seen, our identity, our time in ms}. guard is '0' where the user
-- switched it off, else the factor by which the wait exceeds max_ttl.
local function admission(marker_key, now, ttl, guard)
  if guard == '0' then return nil, '', 'records', 0 end
  local marker = redis.call('GET', marker_key)
  local me = identity()
  if not marker then return {-1, 'new', 0, '', me, now} end
  local id, since, announced, granted, rights = string.match(marker, '^(%x+) (%d+) (%d+) (%d+) (%a+)')
  if not id then return redis.error_reply('FOREIGN value at ' .. marker_key) end
  if id ~= me then return {-1, 'restarted', 0, marker, me, now} end
  if tonumber(ttl) > tonumber(granted) then return {-1, 'max_ttl', 0, marker, me, now} end
  local votes_from = tonumber(since) + math.ceil(tonumber(announced) * tonumber(guard)) + 10
  local left = votes_from - now
  if left > 0 then return {-1, 'waiting', left, marker, me, now} end
  -- What was forgotten may be the last part of a counter only: go on above any clock from which it can have started.
  local least = since == '0' and 0 or math.floor(votes_from / 1000) * 1048576
  return nil, announced .. '/' .. granted, rights, least
end
