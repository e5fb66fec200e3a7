-- Give a node the right to say that there is no record.
-- KEYS: 1 marker. ARGV: 1 the identity for which it was earned. Returns {1} | {0, 'forgot again'}.
local id, rest = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (.*)$')
if id ~= ARGV[1] or identity() ~= ARGV[1] then return {0, 'forgot again'} end
local before, nodes = string.match(rest, '^(%d+ %d+ %d+) %a+ (%S+)')
redis.call('SET', KEYS[1], string.format('%s %s records %s', id, before, nodes))
return {1}
