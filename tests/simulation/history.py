"""What happened, and whether it may: checkers as pure functions of a history.

Times are the simulation's; readings of a process's clock stand beside them where a rule is about what it may know.
Each checker returns the violations that it finds, in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "CLAIM_CHECKS",
    "LIVENESS_CHECKS",
    "LOCK_CHECKS",
    "Entry",
    "History",
    "violations",
]

_EPSILON = 1e-5
_CLOCKS = 0.5
"""Seconds by which two clocks within the assumed rates may differ over the longest lease."""


class Entry(NamedTuple):
    """One thing that happened.

    Args:
        kind: What.
        time: When.
        who: Process or node.
        key: Resource or record.
        token: Whose.
        until: End of the validity that is reported.
        more: Further facts; each checker says which.
    """

    kind: str
    time: float
    who: str = ""
    key: str = ""
    token: str = ""
    until: float = 0.0
    more: Any = None


class History(list[Entry]):
    """Entries in the order of time."""

    def add(
        self,
        kind: str,
        time: float,
        who: str = "",
        key: str = "",
        token: str = "",
        until: float = 0.0,
        more: Any = None,
    ) -> None:
        """Append an entry."""
        self.append(Entry(kind, time, who, key, token, until, more))


class _Span(NamedTuple):
    start: float
    end: float
    token: str
    who: str


def _spans(history: Iterable[Entry], begins: str, ends: tuple[str, ...]) -> dict[str, list[_Span]]:
    """Return for each key the times during which somebody relied on a lease."""
    leases: dict[tuple[str, str, str], list[float]] = {}
    for entry in history:
        lease = (entry.key, entry.token, entry.who)
        if entry.kind == begins:
            leases.setdefault(lease, [entry.time, 0.0, float("inf")])[1] = entry.until
        elif entry.kind == "extended" and lease in leases:
            leases[lease][1] = max(leases[lease][1], entry.until)
        elif entry.kind in ends and lease in leases:
            leases[lease][2] = min(leases[lease][2], entry.time)
    spans = defaultdict(list)
    for (key, token, who), (start, until, ended) in leases.items():
        spans[key].append(_Span(start, min(until, ended), token, who))
    return spans


def _overlaps(spans: list[_Span]) -> Iterator[str]:
    last: _Span | None = None
    for span in sorted(spans):
        if span.end <= span.start:
            continue
        if last and span.start < last.end - _EPSILON and span.token != last.token:
            yield f"{last} and {span}"
        if last is None or span.end > last.end:
            last = span


def exclusion(history: Iterable[Entry]) -> Iterator[str]:
    """S1: [granted, min(release asked for, valid until)] of two tokens never overlap."""
    for key, spans in _spans(history, "granted", ("released", "stopped")).items():
        for overlap in _overlaps(spans):
            yield f"S1 {key}: {overlap}"


def continuity(history: Iterable[Entry]) -> Iterator[str]:
    """S2: between the first grant and the end of the last one of a token, no other token is granted."""
    for key, spans in _spans(history, "granted", ("released", "stopped")).items():
        whole: dict[str, list[float]] = {}
        found = [span for span in spans if span.end > span.start]  # others were over when they were reported
        for span in found:
            bounds = whole.setdefault(span.token, [span.start, span.end])
            bounds[0], bounds[1] = min(bounds[0], span.start), max(bounds[1], span.end)
        for span in found:
            for token, (start, end) in whole.items():
                if token != span.token and start + _EPSILON < span.start < end - _EPSILON:
                    yield f"S2 {key}: {span.token} granted at {span.start:.3f} within {token}'s {start:.3f}-{end:.3f}"


def honest_validity(history: Iterable[Entry]) -> Iterator[str]:
    """S3: validity is what was asked for, less the time since before the first byte, less the drift allowance.

    `more` of granted and extended: clock readings of the first byte, of now, and of the reported end; ttl; drift.
    """
    for entry in history:
        if entry.kind in ("granted", "extended", "claimed") and entry.more is not None:
            sent, now, until, ttl, drift = entry.more[:5]
            if until > sent + ttl - ttl * drift - 0.002 + _EPSILON:
                yield f"S3 {entry.key}: {entry.token} valid until {until - sent:.4f} s after its first byte, ttl {ttl}"
            if entry.kind != "extended" and until <= now:
                yield f"S3 {entry.key}: {entry.token} granted {now - until:.4f} s after its validity"


_OWNED = ("acquire", "extend", "heal", "release", "renew", "abandon", "undo")


def ownership(history: Iterable[Entry]) -> Iterator[str]:
    """S4: no command for one token changes a live key of another, and no undo one that an extension counts on.

    `more` of write: the script, and the key's (value, expiry) before and after, None for none.
    """
    for entry in history:
        if entry.kind == "write":
            script, before, after = entry.more
            if before is None or script not in _OWNED:
                continue
            words = before[0].split(" ", 4)
            owner = words[3] if len(words) > 3 else words[0]  # of a record, or of a lock
            is_counted_on = owner.endswith("+")
            is_strangers = owner.removesuffix("+") != entry.token
            if (is_strangers or (is_counted_on and script == "undo")) and after != before:
                yield f"S4 {entry.who} {entry.key}: {script} for {entry.token} made {before} into {after}"


def growth(history: Iterable[Entry]) -> Iterator[str]:
    """S5: an extension never shortens a key's life on a node, nor the holder's validity."""
    ends: dict[tuple[str, str, str], float] = {}
    for entry in history:
        if entry.kind == "write" and entry.more[0] == "extend":
            _, before, after = entry.more
            if before is not None and after is not None and after[1] < before[1]:
                yield f"S5 {entry.who} {entry.key}: {before} became {after}"
        elif entry.kind in ("granted", "extended"):
            lease = entry.key, entry.token, entry.who
            if entry.kind == "extended" and entry.until < ends.get(lease, entry.until) - _EPSILON:
                yield f"S5 {entry.key}: {entry.token} ended at {ends[lease]:.3f}, extended it ends at {entry.until:.3f}"
            ends[lease] = entry.until


def bounded_healing(history: Iterable[Entry]) -> Iterator[str]:
    """S7: a key that is put back on a node ends with its holder's validity, as far as clocks allow.

    `until` of write: when the key ends.
    """
    ends: dict[str, float] = {}
    healed = []
    for entry in history:
        if entry.kind in ("granted", "extended"):
            ends[entry.token] = max(ends.get(entry.token, 0.0), entry.until)
        elif entry.kind == "write" and entry.more[0] == "heal":
            healed.append(entry)
    for entry in healed:
        if entry.until > ends.get(entry.token, 1e9) + _CLOCKS:
            end = ends[entry.token]
            yield f"S7 {entry.who} {entry.key}: {entry.token} until {entry.until:.3f}, valid until {end:.3f}"


def honest_votes(history: Iterable[Entry]) -> Iterator[str]:
    """S6: a grant has a majority of nodes that granted it, and no reply counts that was read after its deadline.

    `more` of granted: after what S3 needs, the nodes that granted the token, and the number of nodes.
    """
    for entry in history:
        if entry.kind == "late_vote":
            yield f"S6 a vote of {entry.who} counted that was read after the deadline"
        elif entry.kind in ("granted", "claimed") and entry.more is not None and len(entry.more) > 5:
            voters, nodes = entry.more[5:7]
            if len(voters) < nodes // 2 + 1:
                yield f"S6 {entry.key}: {entry.token} granted by {sorted(voters)} of {nodes} nodes"


def fencing(history: Iterable[Entry]) -> Iterator[str]:
    """F1: no two tokens have the same fencing token. F2: a lease asked for after another was granted has a larger one.

    `more` of fenced: when the lease was asked for, and its fencing token.
    """
    leases: defaultdict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for entry in history:
        if entry.kind == "fenced":
            asked, fence = entry.more
            leases[entry.key].append((asked, entry.time, fence, entry.token))
    for key, found in leases.items():
        yield from _unordered(key, found)


def _unordered(key: str, leases: list[tuple[float, float, int, str]]) -> Iterator[str]:
    """Compare the leases of a resource: when each was asked for and granted, its fencing token and its token."""
    owners: dict[int, str] = {}
    for asked, _, fence, token in leases:
        if owners.setdefault(fence, token) != token:
            yield f"F1 {key}: {fence} was given to {owners[fence]} and {token}"
        for earlier, granted, other, other_token in leases:
            if other_token == token and earlier < asked and other > fence:
                yield f"F2 {key}: {token} had {other}, and later {fence}"
            if granted < asked - _EPSILON and other >= fence and other_token != token:
                yield f"F2 {key}: {token} has {fence}, asked for after {other_token} was granted {other}"


LOCK_CHECKS = (
    exclusion,
    continuity,
    honest_validity,
    ownership,
    growth,
    bounded_healing,
    honest_votes,
    fencing,
)


def once(history: Iterable[Entry]) -> Iterator[str]:
    """O1: no run whose claim began after a completion of its key was acknowledged, or served to somebody.

    Kinds: claimed (`until`; `more` ends with when it was asked for), recorded and skipped (`more`: the result).
    """
    settled: dict[str, float] = {}
    for entry in history:
        if entry.kind in ("recorded", "skipped"):
            settled.setdefault(entry.key, entry.time)
        elif entry.kind == "claimed" and settled.get(entry.key, float("inf")) < entry.more[-1] - _EPSILON:
            done = settled[entry.key]
            yield f"O1 {entry.key}: {entry.token} asked for at {entry.more[-1]:.3f}, completed at {done:.3f}"


def one_run(history: Iterable[Entry]) -> Iterator[str]:
    """O2: [claimed, min(body ended, valid until)] of two runs of a key never overlap."""
    for key, spans in _spans(history, "claimed", ("finished",)).items():
        for overlap in _overlaps(spans):
            yield f"O2 {key}: {overlap}"


def one_result(history: Iterable[Entry]) -> Iterator[str]:
    """O3: everybody is served the same result.

    Not judged where the design does not promise it: a node forgot while more than one run's completion was under way.
    """
    results: defaultdict[str, set[Any]] = defaultdict(set)
    completing: defaultdict[str, dict[str, float]] = defaultdict(dict)
    forgot = []
    last: dict[str, float] = {}
    for entry in history:
        if entry.kind == "forgot":
            forgot.append(entry.time)
        elif entry.kind == "completing":
            completing[entry.key].setdefault(entry.token, entry.time)
        elif entry.kind in ("recorded", "skipped"):
            results[entry.key].add(entry.more)
            last[entry.key] = entry.time
    for key, served in results.items():
        starts = sorted(completing[key].values())
        if len(served) > 1 and not (len(starts) > 1 and any(starts[0] <= time <= last[key] for time in forgot)):
            yield f"O3 {key}: {sorted(map(str, served))}"


def explained(history: Iterable[Entry]) -> Iterator[str]:
    """O4: a run beyond the first has a reason: the one before gave up, went unrecorded, or its lease ended.

    Its lease ends also because its process was killed or stood still. Besides: nobody is told of a completion that
    nobody has begun to record.
    """
    runs: defaultdict[str, dict[str, float]] = defaultdict(dict)
    begun: set[str] = set()
    for entry in history:
        if entry.kind == "claimed":
            for token, until in runs[entry.key].items():
                if until > entry.time + _EPSILON:
                    yield f"O4 {entry.key}: {entry.token} runs although {token} was not lost before {until:.3f}"
            runs[entry.key][entry.token] = entry.until
        elif entry.kind == "extended" and entry.token in runs[entry.key]:
            runs[entry.key][entry.token] = max(entry.until, runs[entry.key][entry.token])
        elif entry.kind in ("abandoned", "unrecorded"):
            runs[entry.key].pop(entry.token, None)
        elif entry.kind == "completing":
            begun.add(entry.key)
        elif entry.kind == "skipped" and entry.key not in begun:
            yield f"O4 {entry.key}: {entry.who} was told of a completion that nobody recorded"


CLAIM_CHECKS = (honest_validity, ownership, growth, honest_votes, once, one_run, one_result, explained)


def goals(history: Iterable[Entry]) -> Iterator[str]:
    """L1, L3, L4: what has to be reached once faults have stopped.

    `more` of goal: the rule, the bound, and what was found (None: not reached).
    """
    for entry in history:
        if entry.kind == "goal":
            rule, bound, found = entry.more
            if found is None or found > bound:
                yield f"{rule} {entry.key}: {'not reached' if found is None else found}, at most {bound} allowed"


LIVENESS_CHECKS = (goals,)


def violations(history: Iterable[Entry], checks: Iterable[Callable[[Iterable[Entry]], Iterator[str]]]) -> list[str]:
    """Return all that is wrong, in the order of the checks."""
    return [found for check in checks for found in check(history)]
