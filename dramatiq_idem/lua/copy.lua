-- Move records up to what another node knows: a higher generation, else done over running over anything else over
-- nothing. What stands higher or equal is kept, and so is the life that is left.
-- KEYS: 1 marker, then the records. ARGV: 1 identity of this node when the copy began, then for each record its text
-- and its life in ms. Returns {1, number moved} | {0, 'forgot again'}.
if string.match(redis.call('GET', KEYS[1]) or '', '^%x+') ~= ARGV[1] or identity() ~= ARGV[1] then
  return {0, 'forgot again'}
end
local rank = {done = 3, running = 2, failed = 1, free = 1, forgotten = 1}
local moved = 0
for i = 2, #KEYS do
  local text, left = ARGV[2 * i - 2], ARGV[2 * i - 1]
  local known, theirs = pcall(parse, text)
  local readable, ours = pcall(function() return parse(redis.call('GET', KEYS[i])) end)
  -- What is no record, there or here, is somebody else's and stays.
  if known and readable and (not ours or theirs.generation > ours.generation
    or (theirs.generation == ours.generation and rank[theirs.state] > rank[ours.state])) then
    redis.call('SET', KEYS[i], text, 'PX', left)
    moved = moved + 1
  end
end
return {1, moved}
