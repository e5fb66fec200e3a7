"""Votes, quorum and validity: pure functions over values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "ROUNDING",
    "Count",
    "Verdict",
    "Vote",
    "VoteKind",
    "is_decided",
    "quorum_size",
    "retry_after",
    "tally",
    "validity",
]

ROUNDING = 0.002
"""Seconds taken off every lease for the servers' whole milliseconds. Source: redlock-rb, CLOCK_DRIFT_FACTOR's 2 ms."""


class VoteKind(enum.Enum):
    """What a node said; never two-valued, since silence is neither yes nor no."""

    GRANTED = "granted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Vote(NamedTuple):
    """One node's answer in one round.

    Args:
        node: The node's name (address without credentials).
        kind: Granted, refused or unknown.
        reply: The rest of the script's reply, decoded; empty where there was none.
        cause: Why the vote is unknown, in words; None for the other kinds.
        permanent: Whether asking again cannot help (wrong password, not a Redis server).
    """

    node: str
    kind: VoteKind
    reply: tuple[Any, ...] = ()
    cause: str | None = None
    permanent: bool = False


class Verdict(enum.Enum):
    """What a round of votes means."""

    GRANTED = "granted"
    HELD = "held"
    UNREACHABLE = "unreachable"


def quorum_size(nodes: int) -> int:
    """Return how many of the configured nodes are a majority.

    Source: Redis documentation, "Distributed locks with Redis": N/2 + 1 of N.
    """
    return nodes // 2 + 1


def validity(ttl: float, elapsed: float, drift: float) -> float:
    """Return how long a lease may be trusted from now, in seconds.

    Args:
        ttl: Life asked from the nodes, in seconds, as sent (whole milliseconds).
        elapsed: Seconds since just before the first node was asked.
        drift: Allowed clock-rate error between hosts, as a share of ttl.
    Returns:
        Seconds left; zero or less means the lease must not be used.
    Source: Redis documentation, "Distributed locks with Redis"; 2 ms as in redlock-rb.
    """
    return ttl - elapsed - (ttl * drift + ROUNDING)


@dataclass(slots=True)
class Count:
    """How a round stands.

    Args:
        nodes: Configured nodes.
        granted: Nodes that granted so far.
        refused: Nodes that refused so far.
        missing: Nodes that have not answered yet; all others are unknown.
    Attributes:
        quorum: A majority of the nodes.
    """

    nodes: int
    granted: int = 0
    refused: int = 0
    missing: int = 0
    quorum: int = field(init=False)

    def __post_init__(self) -> None:
        self.quorum = quorum_size(self.nodes)

    @classmethod
    def of(cls, votes: Sequence[Vote | None]) -> Count:
        """Count the votes of all configured nodes; None for one that is missing."""
        kinds = [vote and vote.kind for vote in votes]
        return cls(len(kinds), kinds.count(VoteKind.GRANTED), kinds.count(VoteKind.REFUSED), kinds.count(None))

    def add(self, vote: Vote) -> None:
        """Take the vote of a node that was missing."""
        self.missing -= 1
        if vote.kind is VoteKind.GRANTED:
            self.granted += 1
        elif vote.kind is VoteKind.REFUSED:
            self.refused += 1

    @property
    def verdict(self) -> Verdict:
        """What the votes mean; a missing vote counts as unknown.

        Held means that no quorum could grant even if every unknown node had; anything else short of a quorum of
        grants cannot be told from an outage.
        """
        if self.granted >= self.quorum:
            return Verdict.GRANTED
        return Verdict.HELD if self.refused > self.nodes - self.quorum else Verdict.UNREACHABLE


def tally(votes: Sequence[Vote]) -> Verdict:
    """Return what the votes of all configured nodes mean; see `Count.verdict`."""
    return Count.of(votes).verdict


def is_decided(count: Count) -> bool:
    """Return whether no further vote can change the verdict, or none is to come.

    Short of that all are waited for: nodes that refuse to vote are admitted only when all have answered.
    """
    return not count.missing or count.verdict is not Verdict.UNREACHABLE


def retry_after(votes: Sequence[Vote]) -> float | None:
    """Return the seconds after which enough holders' keys have ended for a quorum; None if the nodes cannot tell."""
    refusals = [int(vote.reply[1]) for vote in votes if vote.kind is VoteKind.REFUSED and len(vote.reply) > 1]
    lefts = sorted(left / 1000 for left in refusals if left >= 0)  # a key without an end is somebody else's
    free = sum(vote.kind is not VoteKind.REFUSED for vote in votes)
    needed = quorum_size(len(votes)) - free
    return lefts[needed - 1] if 0 < needed <= len(lefts) else None
