"""Repair: a node that forgot its records learns them from the others, and may then speak for their absence again.

A node that restarted, was flushed or replaced takes completions and answers done, but may not say "there is nothing":
what it has forgotten may have been completed. It gets that right back when a copy was made of the records of
N - min(W, majority) + 1 nodes that remember:

- It starts after the node's lease wait, which is longer than any attempt: what was acknowledged with its help before
  it forgot is on the other nodes by then, and completions since reach it by themselves.
- A copy only moves a record up; completions that arrive meanwhile are not undone by it.
- The right is given to the marker for which the copy was made, and only if no source has forgotten meanwhile.
- One repairs at a time, under a lease. A repair that breaks off gives no right and is begun anew.
- If all nodes answer and none has the right (new, or all have forgotten), nobody knows more than they do: they get it,
  with one critical event. All are marked "fresh" before the first gets it. So beside a node that has it, a fresh one is
  known to miss nothing, and the next repair can finish what broke off half-way.
- If too few remember, claims wait until others are back, or until somebody accepts the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dramatiq_idem.events import NodeRepaired, RecordsForgotten
from dramatiq_idem.lookup import LOOK
from dramatiq_idem.record import Quorums
from redlock import (
    ADMISSION,
    Broadcast,
    Command,
    LockHeldError,
    LockProtocol,
    Marker,
    Observer,
    Plan,
    QuorumUnreachableError,
    Settings,
    Term,
    Vote,
    VoteKind,
    load_script,
    notify,
)

__all__ = ["Repair", "Standing"]

SCAN = load_script("dramatiq_idem", "scan", grants=(int, str, str, list))
COPY = load_script("dramatiq_idem", "record", "copy", head=ADMISSION, grants=(int, int))
ENTITLE = load_script("dramatiq_idem", "entitle", head=ADMISSION)

_BATCH = 200
_LEASE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Standing:
    """Which nodes may speak for the records.

    Args:
        markers: Each node's marker; None if it did not answer, has none, or has forgotten since and nobody has met it.
        answered: Whether the node answered.
        ages_ms: How long ago each marker was written, by the node's own clock.
    """

    markers: tuple[Marker | None, ...]
    answered: tuple[bool, ...]
    ages_ms: tuple[int, ...]

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> Standing:
        """Read the nodes' answers to a look."""
        markers: list[Marker | None] = []
        ages: list[int] = []
        for vote in votes:
            marker = Marker.parse(str(vote.reply[3])) if vote.kind is VoteKind.GRANTED else None
            is_its_own = marker is not None and marker.identity == vote.reply[4]
            markers.append(marker if is_its_own else None)
            ages.append(int(vote.reply[2]) - marker.since_ms if marker else 0)
        return cls(tuple(markers), tuple(vote.kind is VoteKind.GRANTED for vote in votes), tuple(ages))

    @property
    def is_whole(self) -> bool:
        """Whether all nodes answer, and each knows where it stands."""
        return all(self.answered) and None not in self.markers

    @property
    def remembering(self) -> list[int]:
        """The nodes with records rights."""
        return [index for index, marker in enumerate(self.markers) if marker and marker.rights == "records"]

    @property
    def forgetful(self) -> list[int]:
        """The nodes that vote on leases, or will, but not on the absence of records."""
        return [index for index, marker in enumerate(self.markers) if marker and marker.rights != "records"]

    @property
    def fresh(self) -> list[int]:
        """The nodes that were there when nobody knew anything; no record is missing on them if some node remembers."""
        return [index for index, marker in enumerate(self.markers) if marker and marker.rights == "fresh"]

    @property
    def is_settled(self) -> bool:
        """Whether every attempt that may count a forgetful node's earlier answers has ended: none outlasts max_ttl."""
        waiting = [(self.markers[index], self.ages_ms[index]) for index in self.forgetful]
        return all(marker and age >= marker.announced_ms for marker, age in waiting)


@dataclass(frozen=True, slots=True)
class _Job:
    """One repair under way."""

    standing: Standing
    term: Term
    token: str
    progress: Callable[[str, int], None]


class Repair:
    """Plans that bring nodes up to date.

    Args:
        settings: Of the namespace.
        quorums: How many nodes are needed.
        locks: For the lease under which a repair runs.
        observer: Is told of what was repaired.
        names: The nodes' names.
    """

    def __init__(
        self, settings: Settings, quorums: Quorums, locks: LockProtocol, observer: Observer, names: Sequence[str]
    ) -> None:
        self._settings = settings
        self._quorums = quorums
        self._locks = locks
        self._observer = observer
        self._names = names

    def standing(self) -> Plan[Standing]:
        """Ask all nodes for their markers."""
        keys = (self._settings.key("record", "-"), self._settings.key("marker"))
        votes = yield Broadcast.to_all(Command(LOOK, keys, ()), self._quorums.nodes, self._settings.node_timeout)
        return Standing.of(votes)

    def repair(self, *, accept_loss: bool = False, progress: Callable[[str, int], None] | None = None) -> Plan[bool]:
        """Bring all forgetful nodes up to date; return whether all nodes that answer may speak for the records.

        Args:
            accept_loss: Go on with fewer remembering nodes than needed: completions that only those which are away
                know may be run again.
            progress: Called with a node's name and the number of records read so far.
        """
        standing = yield from self.standing()
        if not standing.forgetful:
            return standing.is_whole
        if not standing.is_settled:
            return False
        try:
            grant = yield from self._locks.acquire("repair", min(_LEASE_MS, self._settings.max_ttl_ms), 0.0, iter(()))
        except (LockHeldError, QuorumUnreachableError):
            return False
        term = Term("repair", grant.ttl, grant.started, grant.valid_until, self._locks.clock)
        job = _Job(standing, term, grant.token, progress or _no_progress)
        try:
            return (yield from self._repair_all(job, accept_loss=accept_loss))
        finally:
            yield from self._locks.release("repair", grant.token)

    def _repair_all(self, job: _Job, *, accept_loss: bool) -> Plan[bool]:
        standing = job.standing
        sources = standing.remembering
        complete = standing.fresh if sources else []
        if not sources and standing.is_whole:  # nobody knows more than the others
            complete = standing.forgetful
            for target in complete:
                if not (yield from self._entitle(target, job, "fresh")):
                    return False
        if len(sources) + len(complete) < self._quorums.remembering and not accept_loss:
            return False
        for target in sorted(standing.forgetful, key=lambda index: index not in complete):
            moved = 0
            for source in [] if target in complete else [*sources, *complete]:
                moved_from_here = yield from self._copy(source, target, job)
                if moved_from_here is None:
                    return False
                moved += moved_from_here
            if not (yield from self._entitle(target, job, "records")):
                return False
            notify(self._observer, NodeRepaired(self._names[target], moved))
        if len(sources) < self._quorums.remembering:
            notify(self._observer, RecordsForgotten(tuple(self._names[index] for index in standing.forgetful)))
        return standing.is_whole

    def _entitle(self, target: int, job: _Job, rights: str) -> Plan[bool]:
        """Write a node's rights into the marker that it had when this repair began; return whether it still had it."""
        marker = job.standing.markers[target]
        args = (marker.identity, marker.since_ms, rights) if marker else ("", 0, rights)
        answer = yield from self._ask(target, Command(ENTITLE, (self._settings.key("marker"),), args))
        return answer.kind is VoteKind.GRANTED

    def _copy(self, source: int, target: int, job: _Job) -> Plan[int | None]:
        """Copy what one node remembers; return how many records were moved up, None if it broke off."""
        cursor, read, moved = "0", 0, 0
        pattern = f"{self._settings.pattern[:-1]}record:*"
        marker_key, marker = self._settings.key("marker"), job.standing.markers[target]
        while True:
            if job.term.renew_at <= self._locks.clock() and not (yield from self._locks.extend(job.term, job.token)):
                return None
            page = yield from self._ask(source, Command(SCAN, (marker_key,), (cursor, pattern, _BATCH)))
            if page.kind is not VoteKind.GRANTED or not _is_the_same(str(page.reply[1]), job.standing.markers[source]):
                return None
            cursor, records = str(page.reply[0]), [str(value) for value in page.reply[2]]
            values = [value for pair in zip(records[1::3], records[2::3], strict=True) for value in pair]
            if values and marker:
                copy = Command(COPY, (marker_key, *records[0::3]), (marker.identity, *values))
                answer = yield from self._ask(target, copy)
                if answer.kind is not VoteKind.GRANTED:
                    return None
                moved += int(answer.reply[0])
            read += len(records) // 3
            job.progress(self._names[target], read)
            if cursor == "0":
                return moved

    def _ask(self, index: int, command: Command) -> Plan[Vote]:
        commands = tuple(command if each == index else None for each in range(self._quorums.nodes))
        votes = yield Broadcast(commands, self._settings.max_ttl)
        return votes[index]  # type: ignore[no-any-return]


def _is_the_same(text: str, before: Marker | None) -> bool:
    marker = Marker.parse(text)
    return bool(marker and before and marker.identity == before.identity)


def _no_progress(_node: str, _read: int) -> None:
    """Show nothing."""
