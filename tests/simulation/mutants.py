"""Rules taken out of the shipping code, one at a time: the simulation has to notice each of them in time.

A mutant is a replacement of text in a shipping file (or an assumption broken) and the promises of which one must break.
Where a schedule would break without the mutant too, it does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.shipping import Edit, loaded

__all__ = ["BUDGET", "MUTANTS", "Finding", "Mutant", "hunt"]

BUDGET = 4_000
"""Schedules within which a mutant has to be found."""


@dataclass(frozen=True)
class Mutant:
    """One rule that is taken out.

    Args:
        name: What is wrong then.
        mode: "lock" or "claim".
        promises: Beginnings of the violations that count.
        edits: Replacements in the shipping code.
        options: For `play`: profile, nodes, broken assumptions.
    """

    name: str
    mode: str
    promises: tuple[str, ...]
    edits: tuple[Edit, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A mutant that was found: after how many schedules, at which seed, by what."""

    schedules: int
    seed: int
    violation: str


def _lock(name: str, promises: str, *edits: Edit, **options: Any) -> Mutant:
    return Mutant(name, "lock", tuple(promises.split()), edits, options)


def _claim(name: str, promises: str, *edits: Edit, **options: Any) -> Mutant:
    return Mutant(name, "claim", tuple(promises.split()), edits, options)


PROTOCOL, ADMISSION = "redlock/protocol.py", "redlock/admission.py"
CLAIMS, JUDGEMENT, REPAIR = "dramatiq_idem/claims.py", "dramatiq_idem/judgement.py", "dramatiq_idem/repair.py"
ACQUIRE_STARTED = "            admitted = yield from admission.admit(votes, self._settings)\n"
STARTED_LATE = (
    "            started = self._clock()\n            until = started + trusted(ttl_ms, self._settings)\n"
) + ACQUIRE_STARTED

MUTANTS = [
    _lock(
        "quorum off by one",
        "S1",
        Edit("redlock/quorum.py", "return nodes // 2 + 1", "return nodes // 2"),
    ),
    _lock(
        "no drift allowance",
        "S1",
        Edit("redlock/quorum.py", "return ttl - elapsed - (ttl * drift + ROUNDING)", "return ttl - elapsed"),
    ),
    _lock("validity counted from the reply", "S1", Edit(PROTOCOL, ACQUIRE_STARTED, STARTED_LATE)),
    _lock(
        "validity not looked at",
        "S3",
        Edit(
            PROTOCOL,
            "if tally(votes) is Verdict.GRANTED and self._clock() < until:",
            "if tally(votes) is Verdict.GRANTED:",
            2,
        ),
    ),
    _lock(
        "release without a look at the owner",
        "S1",
        Edit(
            "redlock/lua/release.lua",
            "if is_ours(redis.call('GET', KEYS[1])) then",
            "if redis.call('GET', KEYS[1]) then",
        ),
    ),
    _lock(
        "extension may shorten",
        "S5",
        Edit("redlock/lua/extend.lua", "math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]))", "ARGV[2]"),
    ),
    _lock(
        "extension brings a key back",
        "S1 S2",
        Edit(
            "redlock/lua/extend.lua",
            "if not holder then return {0, 'gone', now_ms()} end",
            "if not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return {1, 'extended'} end",
        ),
    ),
    _lock(
        "no guard after forgetting",
        "S1",
        Edit("redlock/settings.py", 'return f"{1 + 2 * self.drift:g}" if self.restart_guard else "0"', 'return "0"'),
    ),
    _lock(
        "wait of a third of a lease",
        "S1",
        Edit(
            "redlock/lua/admission.lua",
            "math.ceil(tonumber(announced) * tonumber(guard)) + 10",
            "math.ceil(tonumber(announced) / 3)",
        ),
        plot="heal",
    ),
    _lock(
        "identity not looked at",
        "S1",
        Edit("redlock/lua/admission.lua", "if id ~= me then return {-1, 'restarted', 0, marker, me, now} end", ""),
    ),
    _lock(
        "nothing taken back",
        "L4",
        Edit("redlock/plan.py", "commands[vote.kind] for vote in votes", "None for _ in votes"),
        profile="liveness",
    ),
    _lock(
        "fencing token without write-back",
        "F1 F2",
        Edit(PROTOCOL, "if list(counters).count(largest) >= quorum_size(self._size):", "if counters:"),
    ),
    _lock("node clocks step", "S1", steps=True),
    _lock(
        "admitted by a client that met only the node that forgot",
        "S1",
        Edit(ADMISSION, "if not remembered and sum(forgot) < quorum_size(len(votes)):", "if False:"),
        profile="mixed",
        plot="alone",
    ),
    _lock(
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
    _lock(
        "healed without the counter",
        "F1 F2",
        Edit(
            "redlock/lua/heal.lua",
            "if (tonumber(redis.call('GET', KEYS[2])) or 0) < tonumber(ARGV[3]) then",
            "if false then",
        ),
        Edit("redlock/lua/counter.lua", "if not counter then return {0, 'no counter'} end", "counter = counter or 0"),
        plot="heal",
    ),
    _lock(
        "heal without an end",
        "S7",
        Edit("redlock/lua/heal.lua", "local left = tonumber(ARGV[2]) - now_ms()", "local left = 10000"),
    ),
    _lock(
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
    _lock(
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
    _lock(
        "longer max_ttl raised by those who are there",
        "S1",
        Edit(ADMISSION, "    if silent:\n", "    if False:\n"),
        profile="mixed",
        plot="raise",
    ),
    _lock(
        "undo of a key that an extension counts on",
        "S1 S2",
        Edit("redlock/lua/extend.lua", "ARGV[1] .. '+'", "ARGV[1]"),
        Edit("redlock/lua/heal.lua", "ARGV[1] .. '+'", "ARGV[1]"),
        plot="late",
    ),
    _lock(
        "fencing token from a minority of counters",
        "F1 F2",
        Edit(PROTOCOL, "if len(counters) < quorum_size(self._size):", "if not counters:"),
        profile="mixed",
    ),
    _lock(
        "counters from where a node began to wait",
        "F1 F2",
        Edit(
            "redlock/lua/admission.lua",
            "math.floor(votes_from / 1000) * 1048576",
            "(math.floor(tonumber(since) / 1000) + 1) * 1048576",
        ),
        plot="old",
    ),
    _lock(
        "attached after the validity",
        "S3",
        Edit(
            PROTOCOL,
            "        if self._clock() >= until:\n            raise _refusal(resource, votes)\n        return Grant(",
            "        return Grant(",
        ),
        plot="paused",
    ),
    _lock(
        "old counters count on",
        "F1 F2",
        Edit(
            "redlock/lua/acquire.lua",
            "or math.floor(now / 1000) * 1048576, least)",
            "or math.floor(now / 1000) * 1048576, 0)",
        ),
        plot="old",
    ),
    _lock(
        "replies read late count",
        "S6",
        Edit("redlock/question.py", "if self._clock() >= self.overdue_at:", "if False:"),
    ),
    _claim(
        "acknowledged with one node less than W",
        "O1 O3",
        Edit(
            CLAIMS,
            "is VoteKind.GRANTED for vote in votes]) >= self._quorums.write",
            "is VoteKind.GRANTED for vote in votes]) >= self._quorums.write - 1",
        ),
        plot="lonely",
    ),
    _claim(
        "done overwritten",
        "O3",
        Edit(
            "dramatiq_idem/lua/complete.lua",
            "if record.state == 'done' and record.generation == tonumber(ARGV[2]) then return {0, 'done', value} end",
            "",
        ),
    ),
    _claim(
        "no read repair",
        "O1 O3",
        Edit(CLAIMS, "if isinstance(outcome, Completed) and not outcome.is_agreed:", "if False:"),
        plot="lonely",
    ),
    _claim(
        "absence without rights",
        "O1",
        Edit(JUDGEMENT, "absent = [answer for answer in current if answer.has_rights]", "absent = current"),
        plot="lonely",
    ),
    _claim(
        "claim over a running one",
        "O2 O4",
        Edit("dramatiq_idem/lua/claim.lua", "if record.deadline > now then return", "if false then return"),
    ),
    _claim(
        "no guard on claims after forgetting",
        "O2",
        Edit("redlock/lua/admission.lua", "if left > 0 then return {-1, 'waiting', left, marker, me, now} end", ""),
        plot="heal",
    ),
    _claim(
        "renewal without a look at the owner",
        "O2 S4",
        Edit("dramatiq_idem/lua/renew.lua", " or record.token ~= ARGV[1] then", " then"),
    ),
    _claim(
        "repair from too few",
        "O1",
        Edit(REPAIR, "_quorums.remembering and not accept_loss:", "_quorums.remembering and False:"),
        plot="lonely",
    ),
    _claim(
        "nodes without copies taken for complete",
        "O1",
        Edit(REPAIR, "complete = standing.fresh if sources else []", "complete = standing.forgetful"),
        plot="lonely",
    ),
    _claim(
        "repair that copies nothing",
        "O1",
        Edit(REPAIR, "            if values and marker:\n", "            if False:\n"),
        plot="lonely",
    ),
    _claim(
        "rights given to whoever is there",
        "O1",
        Edit(
            "dramatiq_idem/lua/entitle.lua",
            "if id ~= ARGV[1] or since ~= ARGV[2] or identity() ~= id then",
            "if not id then",
        ),
        Edit(
            "dramatiq_idem/lua/entitle.lua",
            "string.format('%s %s %s %s %s', id,",
            "string.format('%s %s %s %s %s', identity(),",
        ),
        plot="again",
    ),
    _claim(
        "a copy that moves records down",
        "O1 O3",
        Edit(
            "dramatiq_idem/lua/copy.lua",
            "rank[theirs.state] > rank[ours.state]",
            "rank[theirs.state] ~= rank[ours.state]",
        ),
        plot="lonely",
    ),
]


def hunt(mutant: Mutant, budget: int = BUDGET, start: int = 0) -> Finding | None:
    """Play schedules until the mutant breaks one of its promises; None if it does not."""
    options = dict(mutant.options)
    with loaded(f"{mutant.mode}_world", mutant.edits) as world:
        for number, seed in enumerate(range(start, start + budget), 1):
            outcome = world.play(seed, **options)
            found = next((each for each in outcome.violations if each.startswith(mutant.promises)), None)
            if found and not _breaks_anyway(mutant, seed):
                return Finding(number, seed, found)
    return None


def _breaks_anyway(mutant: Mutant, seed: int) -> bool:
    """Whether the schedule breaks with the shipping code as it is, and the assumptions kept."""
    options = {name: value for name, value in mutant.options.items() if name != "steps"}
    with loaded(f"{mutant.mode}_world", ()) as world:
        return any(each.startswith(mutant.promises) for each in world.play(seed, **options).violations)
