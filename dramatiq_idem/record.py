"""Records and what the nodes' answers about them mean: pure functions over values.

A key's record goes through these states on each node; the scripts in ``lua`` are the only ones who move it:

    (none) -claim-> running -complete-> done
                    running -abandon-> free (the body raised) | failed (its retries are used up)
                    running -its lease ends, claim-> running, one takeover more
    any -forget-> forgotten, of the next generation

- A claim is granted when a majority of nodes grants it, and when enough nodes that remember everything (N - W + 1 of
  them, W being the number that confirm a completion) say that nothing is recorded.
- One node that has a completion decides that the body does not run; it is acted on once W nodes hold the same record.
- A completion is true whoever holds the key by then, and never replaced by another one of its generation.
- Records live for the retention; a lease is only a deadline inside of one, by each node's own clock.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from redlock import Vote, VoteKind, quorum_size

__all__ = [
    "Busy",
    "Completed",
    "Granted",
    "Quorums",
    "Record",
    "State",
    "Unavailable",
    "agreed",
    "is_forgetful",
    "judge_claim",
]


class State(str, enum.Enum):
    """Where a key stands on a node."""

    RUNNING = "running"
    FREE = "free"
    FAILED = "failed"
    DONE = "done"
    FORGOTTEN = "forgotten"


_STATES = {state.value: state for state in State}


@dataclass(frozen=True, slots=True)
class Record:
    """What one node has under a key.

    Args:
        state: Where it stands.
        generation: 0 until somebody forgets the key, then one more each time.
        fence: This node's fencing counter for the key.
        token: Who claimed or completed it.
        takeovers: How often a lease ended before its run did.
        deadline_ms: End of the lease by the node's clock; 0 if nobody runs.
        fingerprint: Of the arguments; empty if they are not compared.
        message_id: Of the message that claimed or completed it.
        tail: The record before (running), the result as JSON or nothing (done), the reason (failed).
    """

    state: State
    generation: int
    fence: int
    token: str
    takeovers: int
    deadline_ms: int
    fingerprint: str
    message_id: str
    tail: str = ""

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read a record as it stands on a node; see ``lua/record.lua`` for the layout."""
        state, generation, fence, token, takeovers, deadline, fingerprint, message_id, *tail = text.split(" ", 8)
        return cls(
            _STATES[state],
            int(generation),
            int(fence),
            "" if token == "-" else token,  # noqa: S105 - the sign for none
            int(takeovers),
            int(deadline),
            "" if fingerprint == "-" else fingerprint,
            "" if message_id == "-" else unquote(message_id) if "%" in message_id else message_id,
            tail[0] if tail else "",
        )

    def text(self) -> str:
        """Return the record as it stands on a node."""
        about = about_text(self.fingerprint, self.message_id)
        numbers = f"{self.generation} {self.fence} {self.token or '-'} {self.takeovers} {self.deadline_ms}"
        return f"{self.state.value} {numbers} {about}" + (f" {self.tail}" if self.tail else "")

    def completed(self, result: str) -> Record:
        """Return the record of this run's completion, with its result as JSON or nothing."""
        return replace(self, state=State.DONE, deadline_ms=0, tail=result)


def about_text(fingerprint: str, message_id: str) -> str:
    """Return how a record names its arguments and its message: two words without spaces, "-" for an empty one."""
    return f"{fingerprint or '-'} {_word(message_id)}"


def _word(text: str) -> str:
    return "%2D" if text == "-" else quote(text, safe=":@") or "-"


@dataclass(frozen=True, slots=True)
class Quorums:
    """How many of the configured nodes are needed.

    Args:
        nodes: Configured nodes, N.
        write: Nodes that hold the same completion before a message is acknowledged, W; a majority to N.
    """

    nodes: int
    write: int

    @property
    def lease(self) -> int:
        """Nodes that grant a claim: a majority, so that two claims meet."""
        return quorum_size(self.nodes)

    @property
    def absence(self) -> int:
        """Nodes with records rights that find nothing: so many that they meet every acknowledged completion.

        Source: quorum intersection, R + W > N.
        """
        return self.nodes - self.write + 1


@dataclass(frozen=True, slots=True)
class Granted:
    """The key is ours: run the body. `fences` are the counters of the nodes that granted it."""

    record: Record
    fences: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """The key is done: do not run the body. `is_agreed` once W nodes hold this record."""

    record: Record
    is_agreed: bool


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody runs the key now, for at most `left` seconds unless its lease is renewed."""

    record: Record
    left: float


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing can be concluded; the causes by node name."""

    causes: dict[str, str]


def judge_claim(votes: Sequence[Vote], quorums: Quorums) -> Granted | Completed | Busy | Unavailable:
    """Return what the answers of all nodes to a claim mean."""
    answers = [answer for vote in votes if (answer := _Answer.of(vote))]
    known = max((answer.generation for answer in answers), default=0)
    done = [answer for answer in answers if answer.said == "done" and answer.generation == known]
    granted = [answer for answer in answers if answer.said == "granted"]
    busy = [answer for answer in answers if answer.said == "busy"]
    rights = [answer for answer in answers if answer.has_rights]
    if done and (any(answer.has_rights for answer in done) or len(rights) >= quorums.absence):
        records = [answer.record for answer in done if answer.record]
        found = agreed(records, quorums)
        return Completed(found or _most_frequent(records), found is not None)
    absent = [answer for answer in granted if answer.has_rights]
    if not done and len(granted) >= quorums.lease and len(absent) >= quorums.absence:
        claims = [answer.record for answer in granted if answer.record]
        best = max(claims, key=lambda record: (record.generation, record.fence))
        takeovers = max(record.takeovers for record in claims if record.generation == best.generation)
        return Granted(replace(best, takeovers=takeovers), tuple(record.fence for record in claims))
    holders = [answer.record for answer in busy if answer.record]
    if holders:
        return Busy(holders[0], min(answer.left for answer in busy))
    causes = {vote.node: vote.cause or "unknown" for vote in votes if vote.kind is VoteKind.UNKNOWN}
    forgetful = [vote.node for vote in votes if vote.kind is VoteKind.GRANTED and vote.reply[0] != "records"]
    return Unavailable(causes | dict.fromkeys(forgetful, "has forgotten records and cannot say that there is none"))


def is_forgetful(vote: Vote) -> bool:
    """Return whether an answer to a claim comes from a node that votes, but cannot speak for the records."""
    return vote.kind is not VoteKind.UNKNOWN and not _Answer.has_records_rights(vote)


@dataclass(slots=True)
class _Answer:
    """One node's answer to a claim, taken apart."""

    said: str
    generation: int
    has_rights: bool
    record: Record | None = None
    left: float = 0.0

    @classmethod
    def of(cls, vote: Vote) -> _Answer | None:
        """Read a vote; None if the node said nothing about the key."""
        reply = vote.reply
        if vote.kind is VoteKind.UNKNOWN:
            return cls("not admitted", int(reply[5]), has_rights=False) if reply else None
        if vote.kind is VoteKind.GRANTED:
            record = Record.parse(reply[1])
            return cls("granted", record.generation, reply[0] == "records", record)
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
