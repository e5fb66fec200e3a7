-- Shared by the scripts of a lease's holder. The lock is the holder's token; once an extension counts on this node's key,
-- with a "+" behind it. The undo of an acquire that was not answered may come late: it deletes the bare token only.
local function is_ours(value) return value == ARGV[1] or value == ARGV[1] .. '+' end
