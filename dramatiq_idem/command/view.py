"""One key as all nodes have it: pure functions over what they answered.

The nodes' records are brought together as a claim does it: the highest generation counts; in it a completion decides
over a run, and a run over anything else. A run whose lease is over on every node that has it is orphaned, and so is a
key whose message went to the dead letters for that.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dramatiq_idem.failures import is_failure
from dramatiq_idem.record import Record, State
from redlock import Vote, VoteKind

__all__ = ["Held", "Key", "Kind", "first_claimed", "kind_of", "merge", "read_record"]

_LARGEST = 2**53
"""Lua has no larger whole numbers."""
_ORPHAN_REASONS = ("orphaned:", "ended with their lease")
_WRONG_TYPE = "WRONGTYPE"


class Kind(str, enum.Enum):
    """What a key is, for people; in the order in which one decides over the next."""

    DONE = "done"
    RUNNING = "running"
    ORPHANED = "orphaned"
    FAILED = "failed"
    FREE = "free"
    FORGOTTEN = "forgotten"
    FOREIGN = "foreign"
    NONE = "none"


_ORDER = list(Kind)


@dataclass(frozen=True, slots=True)
class Held:
    """What one node has under a key.

    Args:
        node: The node's name.
        record: The record; None if there is none that can be read.
        kind: What it is on this node.
        ttl_ms: How long it is kept; None if there is nothing.
        now_ms: The node's clock; 0 if it did not answer.
        cause: Why it is not known what the node has; None if it is.
    """

    node: str
    record: Record | None = None
    kind: Kind = Kind.NONE
    ttl_ms: int | None = None
    now_ms: int = 0
    cause: str | None = None

    @classmethod
    def of(cls, vote: Vote) -> Held:
        """Read a node's answer to the script ``look``."""
        if vote.kind is not VoteKind.GRANTED:
            cause = vote.cause or "refused"
            return cls(vote.node, kind=Kind.FOREIGN) if cause.startswith(_WRONG_TYPE) else cls(vote.node, cause=cause)
        text, ttl, now, *_ = vote.reply
        if not text:
            return cls(vote.node, now_ms=int(now))
        record = read_record(str(text))
        kind = kind_of(record, int(now)) if record else Kind.FOREIGN
        return cls(vote.node, record, kind, int(ttl), int(now))

    @property
    def lease_left(self) -> float | None:
        """Seconds until the run's lease ends, negative after it; None if nobody runs."""
        if self.record is None or self.record.state is not State.RUNNING:
            return None
        return (self.record.deadline_ms - self.now_ms) / 1000

    @property
    def ttl_left(self) -> float | None:
        """Seconds until the record is gone; None if it is not there, or stays."""
        return self.ttl_ms / 1000 if self.ttl_ms is not None and self.ttl_ms >= 0 else None

    @property
    def age(self) -> float | None:
        """Seconds since the key was first claimed here, to the second; None if it never was."""
        since = first_claimed(self.record) if self.record else None
        return None if since is None else max(0.0, round(self.now_ms / 1000 - since, 3))


@dataclass(frozen=True, slots=True)
class Key:
    """One key, as all nodes together have it.

    Args:
        name: The record's name.
        kind: What it is.
        holders: The nodes' answers that say so: of the highest generation, and for a completion all the same.
        helds: What each node has.
    """

    name: str
    kind: Kind
    holders: tuple[Held, ...]
    helds: tuple[Held, ...]

    @property
    def record(self) -> Record | None:
        """The record that decides."""
        return self.holders[0].record if self.holders else None

    @property
    def age(self) -> float | None:
        """Seconds since the key was first claimed."""
        return self.holders[0].age if self.holders else None

    @property
    def takeovers(self) -> int:
        """How often a lease ended before its run did, as far as any node that decides knows."""
        return max((held.record.takeovers for held in self.holders if held.record), default=0)

    @property
    def lease_left(self) -> float | None:
        """Seconds until the last of the leases ends."""
        return max((held.lease_left for held in self.holders if held.lease_left is not None), default=None)

    @property
    def ttl_left(self) -> float | None:
        """Seconds until the last of the records is gone."""
        return max((held.ttl_left for held in self.holders if held.ttl_left is not None), default=None)


def merge(name: str, helds: Sequence[Held]) -> Key:
    """Bring together what the nodes have under a key."""
    highest = max((held.record.generation for held in helds if held.record), default=0)
    readable = [held for held in helds if held.record and held.record.generation == highest]
    deciding = readable or [held for held in helds if held.kind is Kind.FOREIGN]
    kind = min((held.kind for held in deciding), key=_ORDER.index, default=Kind.NONE)
    holders = [held for held in deciding if held.kind is kind]
    if kind is Kind.DONE:
        counts = Counter(held.record for held in holders)
        most = max(counts, key=lambda record: counts[record])
        holders = [held for held in holders if held.record == most]
    return Key(name, kind, tuple(holders), tuple(helds))


def read_record(text: str) -> Record | None:
    """Return the record that a text is; None if it is none, or has a number that no script could have written."""
    try:
        record = Record.parse(text)
    except ValueError:
        return None
    return record if max(record.generation, record.fence, record.deadline_ms) <= _LARGEST else None


def kind_of(record: Record, now_ms: int) -> Kind:
    """Return what a record is on a node whose clock says so."""
    if record.state is State.RUNNING:
        return Kind.RUNNING if record.deadline_ms > now_ms else Kind.ORPHANED
    is_ours = record.state is State.FAILED and not is_failure(record.tail)
    if is_ours and any(reason in record.tail for reason in _ORPHAN_REASONS):
        return Kind.ORPHANED
    return Kind(record.state.value)


def first_claimed(record: Record) -> int | None:
    """Return when a key was first claimed, in seconds of the node's clock; None if that cannot be told."""
    return record.first_claimed
