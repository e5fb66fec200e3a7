"""What a holder knows about its lease, without IO: until when to trust it, when to extend it next, why it was lost."""

from __future__ import annotations

from dataclasses import dataclass

from redlock.errors import LeaseLostError
from redlock.plan import Clock

__all__ = ["Grant", "Term"]

RENEWALS_PER_TTL = 3
"""A lease is extended at a third of its ttl, so that two failures in a row cost nothing."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a quorum granted.

    Args:
        resource: What is locked.
        token: The random owner value on the nodes.
        ttl: Life that was asked for, in seconds.
        started: Clock reading before the first byte was sent.
        valid_until: Clock reading after which the lease must not be trusted.
        fence: The fencing token; None if a majority could not confirm it.
        clock_spread: How far the nodes' clocks are apart at least, in seconds.
    """

    resource: str
    token: str
    ttl: float
    started: float
    valid_until: float
    fence: int | None = None
    clock_spread: float = 0.0


class Term:
    """The life of one lease, as its holder may trust it.

    It is shared by the holder's thread and the renewer's. Each field is written by the one that extends or ends the
    lease and only read by the other; being lost is final.

    Args:
        resource: What is locked.
        ttl: Life asked for at every extension, in seconds.
        started: Clock reading before the grant was asked for.
        valid_until: Clock reading until which the grant may be trusted.
        clock: The clock of all these readings.
        max_hold: Seconds after which the lease is no longer extended; None for never.
    """

    __slots__ = ("_cause", "clock", "hold_until", "renew_at", "resource", "ttl", "valid_until")

    def __init__(
        self, resource: str, ttl: float, started: float, valid_until: float, clock: Clock, max_hold: float | None = None
    ) -> None:
        self.resource = resource
        self.ttl = ttl
        self.clock = clock
        self.valid_until = valid_until
        self.renew_at = started + ttl / RENEWALS_PER_TTL
        self.hold_until = None if max_hold is None else started + max_hold
        self._cause: str | None = None

    def remaining(self) -> float:
        """Return the seconds for which the lease may still be trusted; 0.0 if it is lost."""
        return max(0.0, self.valid_until - self.clock()) if self._cause is None else 0.0

    @property
    def cause(self) -> str | None:
        """Why the lease is lost; None while it is not."""
        if self._cause is None and self.clock() >= self.valid_until:
            self._cause = "it was not extended in time"
        return self._cause

    @property
    def is_lost(self) -> bool:
        """Whether the lease can no longer be trusted."""
        return self.cause is not None

    def check(self) -> None:
        """Do nothing while the lease is valid.

        Raises:
            LeaseLostError: It is not; whatever it protected may be done by somebody else now.
        """
        if (cause := self.cause) is not None:
            raise LeaseLostError(self.resource, cause)

    def lose(self, cause: str) -> None:
        """Give the lease up; the first cause stays."""
        if self._cause is None:
            self._cause = cause

    def extended(self, started: float, valid_until: float) -> None:
        """Note that a quorum extended the lease in a round that began at ``started``."""
        self.valid_until = max(self.valid_until, valid_until)
        self.renew_at = started + self.ttl / RENEWALS_PER_TTL

    def postponed(self) -> None:
        """Note that an extension failed: try again soon, several times within the validity that is left."""
        now = self.clock()
        self.renew_at = now + max(0.01, min(self.ttl / 10, (self.valid_until - now) / 4))

    @property
    def is_capped(self) -> bool:
        """Whether the holder has had the lease for so long that it is no longer extended."""
        return self.hold_until is not None and self.clock() >= self.hold_until
