"""What happened, as the clients wrote it down, and what must never be found in it: pure functions of a history.

A history is a list of events, dictionaries with at least `t` (seconds on the clock that all processes of one machine
share, the one that leases are measured with), `client` and `op`:

    acquired    resource, token, fence (or None), invoked, until
    extended    token, until
    looked      token, began, mine: before the lease is given back, how many nodes have its token; away: do not answer
    wrote       resource, token, value: a counter under the lock that nothing else protects
    fenced      resource, token, fence, accepted: a store that refuses tokens below the largest it has seen
    releasing   token; written before the release is sent
    stopping    token; between the check of a lease and the write under it
    called      what, began: a call came to its end, whatever came of it
    stalled     began: nothing of the client ran
    down, admitted   node: what the lock told its observer
    fault       kind, node or victim, until: what the test did, and to whom
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "Event",
    "Hold",
    "holds_of",
    "late_writes",
    "lost_updates",
    "overlaps",
    "read",
    "refused_holders",
    "slow_calls",
    "slowest_calls",
    "thin_leases",
    "unordered_fences",
]

Event: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Hold:
    """One lease as its holder saw it.

    Args:
        invoked: When it was asked for.
        start: When it was known to be granted.
        end: When it was given back or could not be trusted any more, whichever came first.
    """

    resource: str
    client: str
    token: str
    fence: int | None
    invoked: float
    start: float
    end: float


def read(paths: Iterable[Path]) -> list[Event]:
    """Read histories, one event a line, in the order of time; what a killed client began to write is left out."""
    events = []
    for path in paths:
        lines = path.read_text().splitlines(keepends=True)
        events += [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(events, key=lambda event: float(event["t"]))


def holds_of(events: Iterable[Event]) -> list[Hold]:
    """Return all leases, by their start."""
    granted: dict[str, Event] = {}
    until: dict[str, float] = {}
    released: dict[str, float] = {}
    for event in events:
        if event["op"] == "acquired":
            granted[event["token"]] = event
            until[event["token"]] = event["until"]
        elif event["op"] == "extended":
            until[event["token"]] = event["until"]
        elif event["op"] == "releasing":
            released.setdefault(event["token"], event["t"])
    return sorted(
        (
            Hold(
                event["resource"],
                event["client"],
                token,
                event["fence"],
                event["invoked"],
                event["t"],
                min(until[token], released.get(token, until[token])),
            )
            for token, event in granted.items()
        ),
        key=lambda hold: hold.start,
    )


def overlaps(holds: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """S1: return pairs of leases on one resource that were trusted at the same time; none may be."""
    found = []
    last: dict[str, Hold] = {}
    for hold in sorted(holds, key=lambda each: each.start):
        if hold.end <= hold.start:
            continue  # known only when it was over: nobody could trust it
        before = last.get(hold.resource)
        if before is not None and hold.start < before.end:
            found.append((before, hold))
        if before is None or hold.end > before.end:
            last[hold.resource] = hold
    return found


def unordered_fences(holds: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """F1, F2: return pairs with one token, or with a smaller one for whoever asked when the other was had."""
    found = []
    by_resource: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        if hold.fence is not None:
            by_resource[hold.resource].append(hold)
    for group in by_resource.values():
        by_start = sorted(group, key=lambda hold: hold.start)
        largest: Hold | None = None
        position = 0
        for hold in sorted(group, key=lambda each: each.invoked):
            while position < len(by_start) and by_start[position].start <= hold.invoked:
                candidate = by_start[position]
                if largest is None or _fence(candidate) > _fence(largest):
                    largest = candidate
                position += 1
            if largest is not None and largest is not hold and _fence(hold) <= _fence(largest):
                found.append((largest, hold))
        seen: dict[int, Hold] = {}
        for hold in by_start:
            other = seen.setdefault(_fence(hold), hold)
            if other is not hold and (other, hold) not in found:
                found.append((other, hold))
    return found


def late_writes(events: Sequence[Event]) -> list[Event]:
    """Return writes that were over only after the lease was: between check and write anything may happen.

    No lock can prevent them; fencing tokens are there for this.
    """
    ends = {hold.token: hold.end for hold in holds_of(events)}
    return [event for event in events if event["op"] == "wrote" and event["t"] >= ends[event["token"]]]


def lost_updates(events: Sequence[Event]) -> list[tuple[str, int]]:
    """Return what was written to a counter more than once: somebody had read it before another wrote.

    A counter is followed up to the first late write, which may set it back.
    """
    late: dict[str, float] = {}
    for event in late_writes(events):
        late.setdefault(event["resource"], event["t"])
    steps = [event for event in events if event["op"] == "wrote" and event["t"] < late.get(event["resource"], math.inf)]
    written = Counter((event["resource"], event["value"]) for event in steps)
    return [step for step, times in written.items() if times > 1]


def refused_holders(events: Sequence[Event]) -> list[Event]:
    """F3: return writes that a fenced store refused although the lease was still trusted; its token was too small."""
    ends = {hold.token: hold.end for hold in holds_of(events)}
    return [
        event
        for event in events
        if event["op"] == "fenced" and not event["accepted"] and event["t"] < ends[event["token"]]
    ]


def thin_leases(events: Sequence[Event], nodes: int) -> list[Event]:
    """S4: return looks at a lease that was trusted and yet had its token on too few nodes: somebody else took it away.

    Nodes that do not answer may have it, and those that were restarted meanwhile had a reason to lose it.
    """
    granted = {event["token"]: event for event in events if event["op"] == "acquired"}
    holds = {hold.token: hold for hold in holds_of(events)}
    restarts = [event for event in events if event["op"] == "fault" and event["kind"].startswith("restart")]
    found = []
    for event in events:
        if event["op"] != "looked" or event["t"] >= holds[event["token"]].end:
            continue
        since = granted[event["token"]]["invoked"]
        forgot = {fault["node"] for fault in restarts if fault["t"] <= event["t"] and fault["until"] >= since}
        if event["mine"] + event["away"] + len(forgot) < nodes // 2 + 1:
            found.append(event)
    return found


def slow_calls(events: Sequence[Event], longest: Mapping[str, float]) -> list[Event]:
    """L2: return calls that took longer than they may, in seconds by what they were."""
    return [event for event, lasted in _calls(events) if lasted > longest[event["what"]]]


def slowest_calls(events: Sequence[Event]) -> dict[str, float]:
    """Return how long the slowest call of each kind took, in seconds."""
    found: dict[str, float] = {}
    for event, lasted in _calls(events):
        found[event["what"]] = max(lasted, found.get(event["what"], 0.0))
    return found


def _calls(events: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """Give all calls and how long they took; that their process stood still meanwhile is not held against them."""
    stalls: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["op"] == "stalled":
            stalls[event["client"]].append(event)
    for event in events:
        if event["op"] == "called":
            overlaps = [
                min(event["t"], stall["t"]) - max(event["began"], stall["began"]) for stall in stalls[event["client"]]
            ]
            yield event, event["t"] - event["began"] - sum(each for each in overlaps if each > 0)


def _fence(hold: Hold) -> int:
    assert hold.fence is not None
    return hold.fence
