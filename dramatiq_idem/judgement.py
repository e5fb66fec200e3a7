"""What the nodes' answers to a claim mean, and which completion counts: pure functions over votes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from dramatiq_idem.record import Quorums, Record
from redlock import Vote, VoteKind

__all__ = [
    "BEING_FORGOTTEN",
    "Busy",
    "Completed",
    "Failed",
    "Granted",
    "Judgement",
    "Outdated",
    "Unavailable",
    "agreed",
    "granted_by_all",
    "is_forgetful",
    "judge_claim",
]


class Granted(NamedTuple):
    """The key is ours: run the body.

    Args:
        generation: Of the key.
        fences: The counters of the nodes that granted it.
        takeovers: How many runs in a row ended with their lease.
        is_contested: Whether an earlier run was taken over and may still be under way.
    """

    generation: int
    fences: tuple[int, ...]
    takeovers: int = 0
    is_contested: bool = False


@dataclass(frozen=True, slots=True)
class Outdated:
    """Some nodes have begun a new generation of the key: claim again, at that one."""

    generation: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The key is done: do not run the body. `is_agreed` once W nodes hold this record."""

    record: Record
    is_agreed: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The key failed for good, with a reason, and whoever asked wants that instead of a run."""

    record: Record


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody runs the key now, for at most `left` seconds unless its lease is renewed."""

    record: Record
    left: float


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing can be concluded; the causes by node name, or by what else is missing."""

    causes: Mapping[str, str]


BEING_FORGOTTEN: Mapping[str, str] = {"generation": "the key is being forgotten"}
"""Why nothing can be concluded where all nodes answer, of different generations."""


Judgement: TypeAlias = Granted | Completed | Failed | Busy | Unavailable | Outdated


def judge_claim(votes: Sequence[Vote], quorums: Quorums, floor: int = 0) -> Judgement:
    """Return what the answers of all nodes to a claim of at least generation `floor` mean."""
    answers = [answer for vote in votes if (answer := _Answer.of(vote))]
    known = max([answer.generation for answer in answers], default=0)
    said: dict[str, list[_Answer]] = {"done": [], "granted": [], "failed": [], "busy": [], "not admitted": []}
    for answer in answers:
        said[answer.said].append(answer)
    done = [answer for answer in said["done"] if answer.generation == known]
    granted, busy = said["granted"], said["busy"]
    rights = [answer for answer in answers if answer.has_rights]
    if done and (any(answer.has_rights for answer in done) or len(rights) >= quorums.absence):
        records = [answer.record for answer in done if answer.record]
        found = agreed(records, quorums)
        return Completed(found or _most_frequent(records), found is not None)
    current = [answer for answer in granted if answer.generation == known]
    if len(current) < len(granted) and known > floor:
        return Outdated(known)
    failed = [answer for answer in said["failed"] if answer.generation == known]
    current += failed  # neither run nor completed there; one that remembers the failure is enough
    absent = [answer for answer in current if answer.has_rights]
    if not done and len(current) >= quorums.lease and len(absent) >= quorums.absence:
        if failures := [answer.record for answer in failed if answer.record]:
            return Failed(max(failures, key=attrgetter("fence")))
        return _granted([answer.grant for answer in current])
    holders = [answer.record for answer in busy if answer.record]
    if holders:
        return Busy(holders[0], min(answer.left for answer in busy))
    if known > floor and len(failed) < len(said["failed"]):  # whoever tells of an older failure would grant the newer
        return Outdated(known)
    causes = {vote.node: vote.cause or "unknown" for vote in votes if vote.kind is VoteKind.UNKNOWN}
    forgetful = [vote.node for vote in votes if is_forgetful(vote)]
    causes |= dict.fromkeys(forgetful, "has forgotten records and cannot say that there is none")
    return Unavailable(causes or BEING_FORGOTTEN)


def is_forgetful(vote: Vote) -> bool:
    """Return whether an answer to a claim comes from a node that votes, but cannot speak for the records."""
    return vote.kind is not VoteKind.UNKNOWN and not _Answer.has_records_rights(vote)


def granted_by_all(votes: Sequence[Vote]) -> Granted | None:
    """Return what `judge_claim` would where every node grants and nothing else is to be said; else None."""
    grants = [vote.reply for vote in votes if vote.kind is VoteKind.GRANTED and vote.reply[0] == "records"]
    is_alike = len(grants) == len(votes) and len({grant[1] for grant in grants}) == 1
    return _granted(grants) if is_alike else None


def _granted(grants: Sequence[tuple[Any, ...]]) -> Granted:
    """Put together what nodes said that granted a claim of one generation; ``lua/claim.lua`` has the fields."""
    _, generations, fences, takeovers, contested, _ = zip(*grants, strict=True)
    return Granted(generations[0], fences, max(takeovers), 1 in contested)


@dataclass(slots=True)
class _Answer:
    """One node's answer to a claim, taken apart."""

    said: str
    generation: int
    has_rights: bool
    record: Record | None = None
    left: float = 0.0
    grant: tuple[Any, ...] = ()

    @classmethod
    def of(cls, vote: Vote) -> _Answer | None:
        """Read a vote; None if the node said nothing about the key."""
        reply = vote.reply
        if vote.kind is VoteKind.UNKNOWN:
            return cls("not admitted", int(reply[5]), has_rights=False) if reply else None
        if vote.kind is VoteKind.GRANTED:
            return cls("granted", int(reply[1]), reply[0] == "records", grant=reply)
        record = Record.parse(reply[2])
        left = int(reply[1]) / 1000 if reply[0] == "busy" else 0.0
        return cls(str(reply[0]), record.generation, cls.has_records_rights(vote), record, left)

    @staticmethod
    def has_records_rights(vote: Vote) -> bool:
        """Return whether the node that voted may speak for the absence of records."""
        reply = vote.reply
        if vote.kind is VoteKind.GRANTED:
            return reply[0] == "records"  # type: ignore[no-any-return]
        return reply[3 if reply[0] == "busy" else 1] == "records"  # type: ignore[no-any-return]


def agreed(records: Iterable[Record], quorums: Quorums) -> Record | None:
    """Return the completion that counts among those that the nodes hold, or None if that is open.

    It is the one that W nodes hold. Only if all nodes hold completions and no W of them the same, the lowest token's
    counts: no other choice would be the same for every reader.
    """
    held = list(records)
    if not held:
        return None
    best = _most_frequent(held)
    if held.count(best) >= quorums.write:
        return best
    return min(held, key=lambda record: record.token) if len(held) == quorums.nodes else None


def _most_frequent(records: list[Record]) -> Record:
    counts = Counter(records)
    return min(counts, key=lambda record: (-counts[record], record.takeovers, record.token))
