"""Rules of the locks that are taken out, one at a time, and the promise that breaks without each."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutant import Mutant
from tests.simulation.shipping import Edit

__all__ = ["LOCK_MUTANTS"]

PROTOCOL, ADMISSION = "redlock/protocol.py", "redlock/admission.py"
ACQUIRE_STARTED = "            admitted = yield from admission.admit(votes, self._settings)\n"
STARTED_LATE = (
    "            started = self._clock()\n            until = started + trusted(ttl_ms, self._settings)\n"
) + ACQUIRE_STARTED


def lock(name: str, promises: str, *edits: Edit, **options: Any) -> Mutant:
    """Return a mutant that schedules of locks have to notice."""
    return Mutant(name, "lock", tuple(promises.split()), edits, options)


LOCK_MUTANTS = [
    lock(
        "quorum off by one",
        "S1",
        Edit("redlock/quorum.py", "return nodes // 2 + 1", "return nodes // 2"),
    ),
    lock(
        "no drift allowance",
        "S1",
        Edit("redlock/quorum.py", "return ttl - elapsed - (ttl * drift + ROUNDING)", "return ttl - elapsed"),
    ),
    lock("validity counted from the reply", "S1", Edit(PROTOCOL, ACQUIRE_STARTED, STARTED_LATE)),
    lock(
        "validity not looked at",
        "S3",
        Edit(
            PROTOCOL,
            "if verdict is Verdict.GRANTED and self._clock() < until:",
            "if verdict is Verdict.GRANTED:",
            2,
        ),
    ),
    lock(
        "release without a look at the owner",
        "S1",
        Edit(
            "redlock/lua/release.lua",
            "if is_ours(redis.call('GET', KEYS[1])) then",
            "if redis.call('GET', KEYS[1]) then",
        ),
    ),
    lock(
        "extension may shorten",
        "S5",
        Edit("redlock/lua/extend.lua", "math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]))", "ARGV[2]"),
    ),
    lock(
        "extension brings a key back",
        "S1 S2",
        Edit(
            "redlock/lua/extend.lua",
            "if not holder then return {0, 'gone', now_ms()} end",
            "if not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return {1, 'extended'} end",
        ),
    ),
    lock(
        "no guard after forgetting",
        "S1",
        Edit("redlock/settings.py", 'return f"{1 + 2 * self.drift:g}" if self.restart_guard else "0"', 'return "0"'),
    ),
    lock(
        "wait of a third of a lease",
        "S1",
        Edit(
            "redlock/lua/admission.lua",
            "math.ceil(tonumber(announced) * tonumber(guard)) + 10",
            "math.ceil(tonumber(announced) / 3)",
        ),
        plot="heal",
    ),
    lock(
        "identity not looked at",
        "S1",
        Edit("redlock/lua/admission.lua", "if id ~= me then return {-1, 'restarted', 0, marker, me, now} end", ""),
    ),
    lock(
        "nothing taken back",
        "L4",
        Edit("redlock/plan.py", "commands[vote.kind] for vote in votes", "None for _ in votes"),
        profile="liveness",
    ),
    lock(
        "fencing token without write-back",
        "F1 F2",
        Edit(PROTOCOL, "if list(counters).count(largest) >= quorum_size(self._size):", "if counters:"),
    ),
    lock("node clocks step", "S1", steps=True),
    lock(
        "admitted by a client that met only the node that forgot",
        "S1",
        Edit(ADMISSION, "if not remembered and sum(forgot) < quorum_size(len(votes)):", "if False:"),
        profile="mixed",
        plot="alone",
    ),
    lock(
        "attach beyond max_ttl",
        "S1",
        Edit(
            "redlock/lua/extend.lua",
            "if max_ttl and tonumber(ARGV[2]) > tonumber(max_ttl) then return {0, 'max_ttl', max_ttl} end",
            "",
        ),
        profile="mixed",
        plot="relay",
    ),
    lock(
        # That old counters leap stands behind it by now; either rule alone is enough in these schedules.
        "healed without the counter, and old counters count on",
        "F1 F2",
        Edit(
            "redlock/lua/heal.lua",
            "if (tonumber(redis.call('GET', KEYS[2])) or 0) < tonumber(ARGV[3]) then",
            "if false then",
        ),
        Edit("redlock/lua/counter.lua", "if not counter then return {0, 'no counter'} end", "counter = counter or 0"),
        Edit(
            "redlock/lua/admission.lua",
            "local least = since == '0' and 0 or math.floor(votes_from / 1000) * 1048576",
            "local least = 0",
        ),
        plot="heal",
    ),
    lock(
        "heal without an end",
        "S7",
        Edit("redlock/lua/heal.lua", "local left = tonumber(ARGV[2]) - now_ms()", "local left = 10000"),
    ),
    lock(
        "late admission under a new identity",
        "S1",
        Edit(
            "redlock/lua/admit.lua",
            "if seen ~= ARGV[1] or identity() ~= ARGV[2] or now > tonumber(ARGV[3]) then",
            "if seen ~= ARGV[1] then",
        ),
        Edit(
            "redlock/lua/admit.lua",
            "local marker = string.format('%s %.0f %s %s %s %s', ARGV[2],",
            "local marker = string.format('%s %.0f %s %s %s %s', identity(),",
        ),
        profile="mixed",
        plot="keep",
    ),
    lock(
        "longer max_ttl without confirmation",
        "S1",
        Edit(ADMISSION, "        if told and answer.kind is not VoteKind.GRANTED:\n", "        if False:\n"),
        Edit(
            ADMISSION,
            "if refusal and told else refusal\n",
            "if refusal and told and answer.kind is VoteKind.GRANTED else refusal\n",
        ),
        profile="mixed",
        plot="raise",
    ),
    lock(
        "longer max_ttl raised by those who are there",
        "S1",
        Edit(ADMISSION, "    if silent:\n", "    if False:\n"),
        profile="mixed",
        plot="raise",
    ),
    lock(
        "undo of a key that an extension counts on",
        "S1 S2",
        Edit("redlock/lua/extend.lua", "ARGV[1] .. '+'", "ARGV[1]"),
        Edit("redlock/lua/heal.lua", "ARGV[1] .. '+'", "ARGV[1]"),
        plot="late",
    ),
    lock(
        "fencing token from a minority of counters",
        "F1 F2",
        Edit(PROTOCOL, "if len(counters) < quorum_size(self._size):", "if not counters:"),
        profile="uniform",
        plot="thin",
    ),
    lock(
        "counters from where a node began to wait",
        "F1 F2",
        Edit(
            "redlock/lua/admission.lua",
            "math.floor(votes_from / 1000) * 1048576",
            "(math.floor(tonumber(since) / 1000) + 1) * 1048576",
        ),
        plot="old",
    ),
    lock(
        "attached after the validity",
        "S3",
        Edit(
            PROTOCOL,
            "        if self._clock() >= until:\n            raise _refusal(resource, votes)\n        return Grant(",
            "        return Grant(",
        ),
        plot="paused",
    ),
    lock(
        "old counters count on",
        "F1 F2",
        Edit(
            "redlock/lua/acquire.lua",
            "or math.floor(now / 1000) * 1048576, least)",
            "or math.floor(now / 1000) * 1048576, 0)",
        ),
        plot="old",
    ),
    lock(
        "replies read late count",
        "S6",
        Edit("redlock/question.py", "if now >= self.overdue_at:", "if False:"),
    ),
    lock(
        "undo deletes a key that an extension counts on",
        "S1 S2 S4",
        Edit(
            "redlock/lua/undo.lua",
            "if redis.call('GET', KEYS[1]) == ARGV[1] then",
            "if string.match(redis.call('GET', KEYS[1]) or '', '^(%S-)%+?$') == ARGV[1] then",
        ),
        plot="late",
    ),
    lock(
        "counters of nodes that may not vote",
        "F1 F2",
        Edit("redlock/lua/counter.lua", "if refusal then return {0, 'may not vote'} end", "least = least or 0"),
        plot="old",
    ),
]
