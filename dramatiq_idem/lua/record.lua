-- Shared by the record scripts: what stands in a record's key. One line of text, for people too:
--   <state> <generation> <fence> <token> <takeovers> <deadline, ms of this node's clock> <fingerprint> <message id>
-- and after one more space the tail: what was there before (running), the result as JSON (done), the reason (failed).
-- "-" stands for nothing; a "+" behind the token of a running record says that a renewal counts on it: an undo that comes
-- late leaves it alone. States: running, free, failed, done, forgotten; no key: never heard of.
local function parse(value)
  if not value then return nil end
  local state, generation, fence, token, mark, takeovers, deadline, about, tail =
    string.match(value, '^(%a+) (%d+) (%d+) (%S-)(%+?) (%d+) (%d+) (%S+ %S+) ?(.*)$')
  if not state then error('FOREIGN value in a record') end
  return {
    state = state, generation = tonumber(generation), fence = tonumber(fence), token = token, mark = mark,
    takeovers = tonumber(takeovers), deadline = tonumber(deadline), about = about, tail = tail,
  }
end

local function format(state, generation, fence, token, takeovers, deadline, about, tail)
  local head = string.format('%s %d %d %s %d %d %s', state, generation, fence, token, takeovers, deadline, about)
  return tail ~= '' and head .. ' ' .. tail or head
end
