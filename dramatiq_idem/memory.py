"""Records in this process's memory: for your own tests with `StubBroker`, without servers.

It keeps the same promises to the threads of one process as the nodes do, and forgets everything when the process ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dramatiq_idem.claim import Claim, ClaimRequest, Outcome, Recorded
from dramatiq_idem.errors import ForgetError
from dramatiq_idem.judgement import Busy, Completed, Failed
from dramatiq_idem.record import COUNTER_STEP, Record, State
from redlock import Clock, Term, clock, new_token

__all__ = ["MemoryStore"]


@dataclass(slots=True)
class _Entry:
    record: Record
    lease_until: float
    forget_at: float


class MemoryStore:
    """Records of one process; safe to use from any thread.

    Args:
        max_ttl: Longest lease in seconds; default 30.
        clock: Where the time is read; pass your own to let leases and records run out in a test.
    """

    def __init__(self, max_ttl: float = 30.0, clock: Clock = clock) -> None:
        self._max_ttl_ms = round(max_ttl * 1000)
        self._clock = clock
        self._mutex = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    @property
    def max_ttl_ms(self) -> int:
        """The longest lease that can be asked for, in milliseconds."""
        return self._max_ttl_ms

    def check(self) -> None:
        """Do nothing: there is nothing that could be wrong."""

    def claim(self, request: ClaimRequest) -> Outcome:
        """Claim a key, and say what was found."""
        now = self._clock()
        with self._mutex:
            entry = self._entry(request.name, now)
            before = entry.record if entry else None
            if before is not None and before.state is State.DONE:
                return Completed(before, is_agreed=True)
            if request.replays_failures and before is not None and before.state is State.FAILED and before.tail:
                return Failed(before)
            is_running = before is not None and before.state is State.RUNNING
            if entry is not None and is_running and entry.lease_until > now:
                return Busy(entry.record, entry.lease_until - now)
            record = Record(
                State.RUNNING,
                generation=before.generation if before else 0,
                fence=before.fence + 1 if before else int(time.time()) * COUNTER_STEP,
                token=new_token(),
                takeovers=before.takeovers + 1 if before is not None and is_running else 0,
                deadline_ms=0,
                fingerprint=request.fingerprint,
                message_id=request.message_id,
            )
            until = now + request.lease_ms / 1000
            self._entries[request.name] = _Entry(record, until, now + request.retention_ms / 1000)
        term = Term(request.name, request.lease_ms / 1000, now, until, self._clock)
        is_contested = record.takeovers > 0 or _is_marked(before)
        return Claim(request, record, term, (record.fence,), is_contested)

    def keep(
        self,
        claim: Claim,
        on_lost: Callable[[str], None],  # noqa: ARG002 - it cannot be lost
        on_renewed: Callable[[], None] | None = None,  # noqa: ARG002 - and needs no renewal
    ) -> _Kept:
        """Let a claim live until it is ended: nothing but its owner can end it within one process."""
        with self._mutex:
            if entry := self._owned(claim):
                entry.lease_until = claim.term.valid_until = float("inf")
        return _Kept()

    def complete(self, claim: Claim, result: str) -> Recorded | None:
        """Record a completion, unless one stands already or the key was forgotten since."""
        now = self._clock()
        done = claim.record.completed(result)
        with self._mutex:
            entry = self._entry(claim.request.name, now)
            if entry and entry.record.generation > done.generation:
                return Recorded(done, is_forgotten=True)
            if entry and entry.record.state is State.DONE and entry.record.generation == done.generation:
                return Recorded(entry.record)
            self._entries[claim.request.name] = _Entry(done, now, now + claim.request.retention_ms / 1000)
        return Recorded(done)

    def abandon(self, claim: Claim, state: State, reason: str) -> bool:
        """Give a claim up; True if it was still ours."""
        with self._mutex:
            entry = self._owned(claim)
            if entry is not None:
                takeovers = max(entry.record.takeovers, int(claim.is_contested))  # the sign stays
                entry.record = entry.record._replace(state=state, token="", takeovers=takeovers, tail=reason)
        return entry is not None

    def completion(self, name: str) -> Record | None:
        """Return the completion that stands, if there is one."""
        with self._mutex:
            entry = self._entry(name, self._clock())
        return entry.record if entry and entry.record.state is State.DONE else None

    def fence(self, claim: Claim) -> int | None:
        """Return a claim's fencing token; None if the claim is no longer ours."""
        with self._mutex:
            return claim.record.fence if self._owned(claim) else None

    def unclaimed(self, request: ClaimRequest) -> Claim:
        """Return what a completion without a claim is recorded under."""
        now = self._clock()
        with self._mutex:
            entry = self._entry(request.name, now)
        generation = entry.record.generation if entry else 0
        record = Record(State.RUNNING, generation, 0, new_token(), 0, 0, request.fingerprint, request.message_id)
        return Claim(request, record, Term(request.name, 0.0, now, now, self._clock))

    def forget(self, name: str, retention_ms: int, *, force: bool = False) -> int:
        """Begin a new generation of a key; return it. Raises ForgetError while somebody runs it, unless forced."""
        now = self._clock()
        with self._mutex:
            entry = self._entry(name, now)
            if entry and entry.record.state is State.RUNNING and entry.lease_until > now and not force:
                raise ForgetError(f"{name!r} is running")
            generation = entry.record.generation + 1 if entry else 1
            fence = max(entry.record.fence + 1024 if entry else 0, int(time.time()) * COUNTER_STEP)
            record = Record(State.FORGOTTEN, generation, fence, "", 0, 0, "", "")
            self._entries[name] = _Entry(record, now, now + retention_ms / 1000)
        return generation

    def close(self) -> None:
        """Do nothing: what is recorded stays for as long as this object."""

    def _entry(self, name: str, now: float) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is not None and entry.forget_at <= now:
            del self._entries[name]
            return None
        return entry

    def _owned(self, claim: Claim) -> _Entry | None:
        entry = self._entry(claim.request.name, self._clock())
        is_ours = entry is not None and entry.record.state is State.RUNNING and entry.record.token == claim.record.token
        return entry if is_ours else None


def _is_marked(before: Record | None) -> bool:
    """Return whether an earlier run was taken over, given up since by its successor, and may still be under way."""
    return before is not None and before.takeovers > 0


class _Kept:
    def end(self) -> None:
        """Do nothing: the claim is ended by its completion."""
