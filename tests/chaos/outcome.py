"""What the history of a fleet shows: violations of what is promised, faults that were met, and the slowest calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import (
    Event,
    Hold,
    holds_of,
    lost_updates,
    overlaps,
    refused_holders,
    slow_calls,
    slowest_calls,
    thin_leases,
    unordered_fences,
)

__all__ = ["Outcome", "outcome_of"]

_NOTICED = 2.0
"""Seconds after a fault in which a client may notice it: a node that failed is left out for as long."""


@dataclass(frozen=True)
class Outcome:
    """What the history of a run shows."""

    events: list[Event]
    holds: list[Hold]
    violations: dict[str, int]
    injected: Counter[str] = field(default_factory=Counter)
    observed: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        slowest = ", ".join(f"{what} {seconds:.3f} s" for what, seconds in self.slowest.items())
        return (
            f"{len(self.holds)} leases, {self.violations}, injected {self.injected}, observed {self.observed}, "
            f"slowest: {slowest}"
        )


def outcome_of(events: Sequence[Event], nodes: int, names: Sequence[str], longest: Mapping[str, float]) -> Outcome:
    """Judge a history.

    Args:
        events: In the order of time, the faults among them.
        nodes: How many there are.
        names: Their names, as clients report them, in the order of the faults' `node`.
        longest: Seconds that calls may take, by what they are.
    """
    holds = holds_of(events)
    violations = {
        "overlaps": len(overlaps(holds)),
        "fences": len(unordered_fences(holds)),
        "lost updates": len(lost_updates(events)),
        "refused holders": len(refused_holders(events)),
        "thin leases": len(thin_leases(events, nodes)),
        "slow calls": len(slow_calls(events, longest)),
    }
    faults = [event for event in events if event["op"] == "fault"]
    injected = Counter(fault["kind"] for fault in faults)
    observed = Counter(fault["kind"] for fault in faults if _was_noticed(fault, events, holds, names))
    return Outcome([*events], holds, violations, injected, observed, slowest_calls(events))


def _was_noticed(fault: Event, events: Sequence[Event], holds: Sequence[Hold], names: Sequence[str]) -> bool:
    """Tell whether a client says that it met a fault, or held a lease when it was hit itself."""
    if "victim" in fault:
        return any(hold.client == fault["victim"] and hold.start < fault["t"] < hold.end for hold in holds)
    return any(
        event["op"] in ("down", "admitted")
        and event["node"] == names[fault["node"]]
        and fault["t"] <= event["t"] <= fault["until"] + _NOTICED
        for event in events
    )
