"""The errors of redlock: bad settings, contention, outage and loss are four different answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redlock.quorum import Vote

__all__ = [
    "FencingUnavailableError",
    "LeaseLostError",
    "LockHeldError",
    "QuorumUnreachableError",
    "RedlockError",
    "SettingsError",
]


class RedlockError(Exception):
    """Base class of every error that redlock raises on purpose."""


class SettingsError(RedlockError, ValueError):
    """An argument can never work; raised before any node is written to."""


class LockHeldError(RedlockError):
    """A quorum refused: somebody holds the resource, and waiting may help.

    What this attempt had written was taken back; where a node could not be told, the key lives until its ttl.

    Attributes:
        resource: What was to be locked.
        votes: One vote per node, in the order of the configured nodes.
        retry_after: Seconds after which a quorum may be free again, as the nodes see it; None if they cannot tell.
    """

    def __init__(self, resource: str, votes: Sequence[Vote], retry_after: float | None = None) -> None:
        super().__init__(f"{resource!r} is held by somebody else ({_summary(votes)})")
        self.resource = resource
        self.votes = tuple(votes)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.resource, self.votes, self.retry_after)


class QuorumUnreachableError(RedlockError):
    """Too few nodes could vote to tell whether the resource is free; nothing may be concluded from it.

    What this attempt had written was taken back; where a node could not be told, the key lives until its ttl.

    Attributes:
        resource: What was to be locked.
        votes: One vote per node, in the order of the configured nodes.
        causes: What went wrong, by node name.
    """

    def __init__(self, resource: str, votes: Sequence[Vote], remark: str = "no quorum") -> None:
        super().__init__(f"{remark} for {resource!r} ({_summary(votes)})")
        self.resource = resource
        self.remark = remark
        self.votes = tuple(votes)
        self.causes: Mapping[str, str] = {vote.node: vote.cause for vote in votes if vote.cause}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.resource, self.votes, self.remark)


class FencingUnavailableError(RedlockError):
    """The lease is held, but no fencing token can be vouched for; see the cause."""


class LeaseLostError(RedlockError):
    """The lease ran out or is owned by somebody else; the work it protected must stop.

    Attributes:
        resource: What was locked.
        cause: Why the lease is not trusted any more, in words.
    """

    def __init__(self, resource: str, cause: str) -> None:
        super().__init__(f"the lease on {resource!r} is lost: {cause}")
        self.resource = resource
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.resource, self.cause)


def _summary(votes: Sequence[Vote]) -> str:
    """Say in one line how each node voted, by name; names never carry passwords."""
    return "; ".join(f"{vote.node}: {vote.kind.value}" + (f", {vote.cause}" if vote.cause else "") for vote in votes)
