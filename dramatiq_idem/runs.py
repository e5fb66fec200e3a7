"""What a running body can know about its own protection."""

from __future__ import annotations

from contextvars import ContextVar

from dramatiq_idem.claim import Claim
from dramatiq_idem.store import Store
from redlock import LeaseLostError, Term

__all__ = ["Run", "current_run", "enter_run", "leave_run"]


class Run:
    """One protected run of an actor's body.

    Attributes:
        key: The idempotency key: hand it to a payment gateway as its own idempotency key, so that a run which is
            repeated after a crash takes effect there once.
        takeovers: How many earlier runs of this key ended with their lease; more than 0 means that an earlier one may
            have got any distance.
    """

    __slots__ = ("_claim", "_store", "_term", "key", "takeovers")

    def __init__(self, key: str, claim: Claim, store: Store) -> None:
        self.key = key
        self._claim = claim
        self._store = store
        self.takeovers = claim.record.takeovers
        self._term: Term = claim.term

    @property
    def fencing_token(self) -> int:
        """An integer that grows with every run of the key, for a conditional write: "if smaller, set it".

        The first access may ask the nodes once.

        Raises:
            redlock.LeaseLostError: It could not be confirmed that the claim is still ours.
        """
        token = self._store.fence(self._claim)
        if token is None:
            raise LeaseLostError(self.key, "a fencing token could not be confirmed")
        return token

    @property
    def lost(self) -> bool:
        """Whether the lease is lost: another delivery may run the same key by now. No IO."""
        return self._term.is_lost

    def remaining(self) -> float:
        """Return the seconds for which the lease can be trusted if it is not renewed again; no IO."""
        return self._term.remaining()

    def check(self) -> None:
        """Do nothing while the lease is valid; no IO.

        Raises:
            redlock.LeaseLostError: It is lost.
        """
        self._term.check()


_current: ContextVar[Run | None] = ContextVar("dramatiq_idem_run", default=None)


def current_run() -> Run | None:
    """Return the protected run that this code belongs to; None outside of one, as when an actor is called directly."""
    return _current.get()


def enter_run(run: Run) -> None:
    """Make a run the current one of this context."""
    _current.set(run)


def leave_run() -> None:
    """Let this context have no current run."""
    _current.set(None)
