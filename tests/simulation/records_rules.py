"""Records as the model has them: the rules that can be taken out, the states, and the scripts that decide on a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

__all__ = [
    "Faults",
    "Record",
    "Reply",
    "Rules",
    "claim",
    "complete",
    "copy",
    "generation_of",
    "is_above",
    "most_common",
    "put",
    "put_lowest",
    "release",
]

# A higher state is never replaced by a lower one of its generation; doubled so that equal ranks stay equal.
RANK = {"forgotten": 1, "free": 1, "failed": 1, "running": 2, "done": 3}


@dataclass(frozen=True)
class Rules:
    """The rules of the design; each can be taken out.

    Args:
        same_record: A completion is acknowledged when W nodes hold the same done record, not just any.
        keep_done: Done is never overwritten by another done of its generation.
        carry_generation: Commands carry the generation they mean, and lose against a higher one.
        grants_agree: A claim counts only grants of its highest generation, and asks once more at that one.
        ask_when_lost: A run whose lease was lost looks at the record before its result is stored.
        ask_when_taken_over: So does a run that took a claim over, since the first run may still be alive.
        abandon_keeps_takeovers: A claim given up after a takeover still tells the next one of it.
        read_repair: A done record seen on fewer than W nodes is put on the others before anybody acts on it.
        repair_moves_up: A repair replaces a record by a higher one only.
        repair_reads_enough: A repair reads as many nodes that remember as meet every completion and claim.
        sources_remember: A repair ends without effect when a node that it reads has forgotten meanwhile.
        repair_waits: A repair starts once no attempt (or forget) is left that counts a reply from before the amnesia.
        grants_wait_for_leases: A node that forgot grants no claim, even repaired, while a lease from before may live.
        flag_names_identity: A repair gives the rights only to the incarnation of the node it started with.
        absence_needs_rights: A node that forgot does not vote that there is no record.
    """

    same_record: bool = True
    keep_done: bool = True
    carry_generation: bool = True
    grants_agree: bool = True
    ask_when_lost: bool = True
    ask_when_taken_over: bool = True
    abandon_keeps_takeovers: bool = True
    read_repair: bool = True
    repair_moves_up: bool = True
    repair_reads_enough: bool = True
    sources_remember: bool = True
    repair_waits: bool = True
    grants_wait_for_leases: bool = True
    flag_names_identity: bool = True
    absence_needs_rights: bool = True

    def without(self, *names: str) -> Rules:
        """Return these rules with the named ones taken out."""
        return replace(self, **dict.fromkeys(names, False))


@dataclass(frozen=True)
class Faults:
    """What may happen, and how many nodes there are to stand it.

    Args:
        nodes: Independent nodes.
        write_quorum: Nodes that must hold a completion, W; a majority is asked for claims.
        deliveries: The most that one schedule has, besides one after a forget.
        amnesia: Whether nodes may forget.
        forget: Whether the operator forgets the key once.
        amnesia_in_double_run: Whether a node may forget while two runs of a generation are unsettled.
    """

    nodes: int = 3
    write_quorum: int = 2
    deliveries: int = 6
    amnesia: bool = True
    forget: bool = True
    amnesia_in_double_run: bool = False


class Record(NamedTuple):
    """What a node stores under the key; a done record's result is named by the token of the run that made it."""

    state: str
    generation: int
    token: int = -1
    takeovers: int = 0
    previous: Record | None = None  # what an undo puts back

    def __str__(self) -> str:
        return f"{self.state}(g{self.generation}{f' d{self.token}' if self.token >= 0 else ''})"


class Reply(NamedTuple):
    """A node's answer to a claim."""

    kind: str  # granted, busy, not admitted, done
    record: Record | None
    has_rights: bool

    @property
    def generation(self) -> int:
        """Return the generation that the node is in."""
        return generation_of(self.record)

    def __str__(self) -> str:
        return f"{self.kind} {self.record or 'none'}"


# The scripts: what one node does with its record.


def generation_of(record: Record | None) -> int:
    """Return the generation of a record; no record is generation 0."""
    return record.generation if record else 0


def is_above(record: Record, other: Record | None) -> bool:
    """Say whether `record` may replace `other`: a higher generation, or a higher state of the same one."""
    if other is None:
        return True
    return (record.generation, RANK[record.state]) > (other.generation, RANK[other.state])


def claim(
    record: Record | None, token: int, generation: int, *, has_rights: bool, ended: set[int], rules: Rules
) -> Reply:
    """Answer a claim of at least this generation; granted carries the record to be stored."""
    if record and record.state == "done":
        return Reply("done", record, has_rights)
    if rules.absence_needs_rights and not has_rights:
        return Reply("not admitted", record, has_rights)
    running = record is not None and record.state == "running"
    if running and record.token != token and record.token not in ended:
        return Reply("busy", record, has_rights)
    takeovers = record.takeovers + (running and record.token != token) if record else 0
    before = record.previous if running and record.token == token else keepable(record)
    claimed = Record("running", max(generation, generation_of(record)), token, takeovers, before)
    return Reply("granted", claimed, has_rights)


def keepable(record: Record | None) -> Record | None:
    """Return a record as a claim keeps it for its undo: one level deep, but never without its generation."""
    if record is None or record.previous is None:
        return record
    return record._replace(previous=Record("free", record.generation, takeovers=record.takeovers))


def complete(record: Record | None, done: Record, rules: Rules) -> Record | None:
    """Return what the node holds after a completion: the new record, the one it kept, or one of a later generation."""
    if not rules.carry_generation:
        done = done._replace(generation=generation_of(record))
    if record is None or record.generation < done.generation:
        return done
    if record.generation > done.generation:
        return record
    if record.state == "done" and rules.keep_done:
        return record
    return done


def put(record: Record | None, done: Record, rules: Rules) -> Record | None:
    """Return what the node holds after a read repair: `done` where there is none of its generation."""
    if not rules.carry_generation:
        done = done._replace(generation=generation_of(record))
    return done if is_above(done, record) else record


def put_lowest(record: Record | None, done: Record) -> Record | None:
    """Return what the node holds after a split was settled: the lowest token wins over another done."""
    if record and record.state == "done" and record.generation == done.generation and record.token > done.token:
        return done
    return record


def release(record: Record | None, token: int, after: Callable[[Record], Record | None]) -> Record | None:
    """Return what the node holds after its owner gave a claim up (`after` says what); others change nothing."""
    if record and record.state == "running" and record.token == token:
        return after(record)
    return record


def copy(record: Record | None, source: Record | None, rules: Rules) -> Record | None:
    """Return what a node under repair holds after one record was copied to it."""
    if not rules.repair_moves_up:
        return source
    return source if source and is_above(source, record) else record


def most_common(done: Sequence[Record]) -> tuple[Record, int]:
    """Return the record that most nodes hold, the lowest token among equals, and how many hold it."""
    counts = Counter((record.generation, record.token) for record in done)
    (generation, token), count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return Record("done", generation, token), count
