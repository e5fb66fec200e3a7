-- Write which rights a node has: "records", that it may say that there is no record; or "fresh", that it soon may.
-- KEYS: 1 marker. ARGV: the marker for which they were earned: 1 its identity, 2 its since; 3 rights.
-- Returns {1} | {0, 'forgot again'}.
local id, since, longest, nodes = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+) (%d+ %d+) %a+ (%S+)')
if id ~= ARGV[1] or since ~= ARGV[2] or identity() ~= id then return {0, 'forgot again'} end
redis.call('SET', KEYS[1], string.format('%s %s %s %s %s', id, since, longest, ARGV[3], nodes))
return {1}
