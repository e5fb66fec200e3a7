"""Model of the completion records: seeded random schedules of deliveries, faults and repairs around one key.

A delivery claims the key on every node, runs the body when a quorum granted, and records its completion; one script per
step decides on each node (`claim`, `complete`, `give_up`, `undo`, `put`, `copy`). Around them leases end, workers die,
messages and replies are lost, an operator forgets the key, nodes forget everything and are repaired.

Each rule of the design is a switch in `Rules`, so that a test can take one out and see the search find why it is there.

Checked:
    O1    no run whose claim began after a completion of its generation was acknowledged;
    O3    once a result was settled for a generation (completion acknowledged, or a delivery skipped on it), no other
          result is settled, stored or replayed;
    LOST  no delivery is skipped unless a run of its generation (or a later one) completed.

Assumed: looking at the record and storing the body's result is one step; a node does not forget while a second run of
a generation is unsettled or may start (the first lost its lease), or while both runs' done records are still on some
nodes (`Faults.amnesia_in_double_run` lifts that and shows the two results that the design admits); as many nodes
that remember as a repair reads are always left: N - min(W, majority) + 1.

Replay one seed: python -m tests.simulation.records_model --seed 7 --without keep_done
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
Operation = tuple[str, int]  # what happens, and to which delivery or node

STEPS = 110  # per schedule: enough for five deliveries, a repair and a forget
ATTEMPTS_TO_SETTLE = 3  # reads of a delivery that meets unsettled records, before it goes back to the queue

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


# The actors.


@dataclass
class Node:
    """One node; `awaited` are attempts that may still count a reply from before it forgot, `leases` their tokens."""

    record: Record | None = None
    has_rights: bool = True
    identity: int = 0
    awaited: set[tuple[int, int]] = field(default_factory=set)
    awaits_forget: bool = False
    leases: set[int] = field(default_factory=set)


@dataclass
class Delivery:
    """One delivery of the message; its number is its token."""

    token: int
    todo: list[int]
    sent_in: int  # generation when it was sent
    acked_before: frozenset[int]  # generations whose completion was acknowledged when its claim began
    phase: str = "claiming"
    attempt: int = 0
    reads: int = 0
    replies: dict[int, Reply] = field(default_factory=dict)
    held: dict[int, Record] = field(default_factory=dict)  # done records by node, as the completion saw them
    record: Record | None = None  # what it completes with, or repairs with
    generation: int = 0  # what its claim asks for at least
    takeovers: int = 0
    lowest_wins: bool = False
    then: str = ""  # phase after a read repair

    def enter(self, phase: str, todo: Iterable[int] = ()) -> None:
        """Begin a phase with a new attempt."""
        self.phase, self.todo, self.attempt = phase, list(todo), self.attempt + 1

    @property
    def is_over(self) -> bool:
        """Say whether nothing more comes from this delivery."""
        return self.phase == "over"

    @property
    def is_running(self) -> bool:
        """Say whether the body was entered and the completion is not recorded yet."""
        return self.phase in ("running", "body done", "completing") or self.then == "completing"


@dataclass
class Repair:
    """A repair under way: whom it mends, which nodes it still reads."""

    node: int
    identity: int
    sources: list[int]


@dataclass
class Forgetting:
    """The operator's `forget` under way."""

    tombstone: Record
    todo: list[int]


class Chooser:
    """Draws the choices within a step: random and noted, or read back from an earlier step."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._tape: Sequence[float] | None = None
        self.drawn: list[float] = []

    def begin_step(self, tape: Sequence[float] | None = None) -> None:
        """Start a step, reading from `tape` if one is given."""
        self._tape, self.drawn = tape, []

    def fraction(self) -> float:
        """Return a number from 0 to below 1."""
        if self._tape is None:
            drawn = self._source.random()
        else:
            drawn = self._tape[len(self.drawn)] if len(self.drawn) < len(self._tape) else 0.999
        self.drawn.append(drawn)
        return drawn

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.fraction() < probability

    def take(self, items: list[Item]) -> Item:
        """Remove one item and return it."""
        return items.pop(int(self.fraction() * len(items)))


@dataclass(frozen=True)
class Weather:
    """How rough one schedule is; drawn from its seed."""

    loss: float
    deliveries: int
    pace: int  # weight of a delivery's own steps
    lease_ends: int
    kills: int
    repair: int  # weight of a repair's steps
    amnesias: int  # the most that happen
    forget: int

    @classmethod
    def of(cls, source: random.Random, faults: Faults) -> Weather:
        """Draw the weather; some schedules have no amnesia or no forget, so that other faults get room."""
        return cls(
            loss=source.choice((0.0, 0.05, 0.15, 0.3)),
            deliveries=source.choice((faults.deliveries, (faults.deliveries + 1) // 2)),
            pace=source.choice((4, 12)),
            lease_ends=source.choice((1, 2, 4)),
            kills=source.choice((0, 1)),
            repair=source.choice((4, 20)),
            amnesias=source.choice((0, 1, 2, 4)) if faults.amnesia else 0,
            forget=source.choice((0, 1)) if faults.forget else 0,
        )


class World:
    """Nodes, deliveries and the history that the promises are checked against."""

    def __init__(self, rules: Rules, faults: Faults, weather: Weather, chooser: Chooser) -> None:
        self.rules, self.faults, self.weather, self.choose = rules, faults, weather, chooser
        self.nodes = [Node() for _ in range(faults.nodes)]
        self.deliveries: list[Delivery] = []
        self.ended: set[int] = set()  # tokens whose lease is over
        self.repair: Repair | None = None
        self.forgetting: Forgetting | None = None
        self.generation = 0  # as of the last forget that succeeded
        self.forgets_left = 1
        self.amnesias_left = weather.amnesias
        self.runs: dict[int, list[Delivery]] = {}
        self.completed: set[int] = set()
        self.acked: set[int] = set()
        self.settled: dict[int, int] = {}
        self.violation = ""
        self.story: list[tuple[object, ...]] = []
        self._deliver()

    @property
    def quorum(self) -> int:
        """Return the smallest majority of the nodes."""
        return self.faults.nodes // 2 + 1

    @property
    def rememberers_needed(self) -> int:
        """Return how many nodes a repair reads: they meet every write quorum, and every quorum of a claim."""
        return self.faults.nodes - min(self.faults.write_quorum, self.quorum) + 1

    @property
    def everywhere(self) -> range:
        """Return all node numbers."""
        return range(self.faults.nodes)

    def operations(self) -> list[Operation]:
        """Return what may happen next; likelier operations are listed more often."""
        weather = self.weather
        found: list[Operation] = []
        if len(self.deliveries) < weather.deliveries:
            found.append(("deliver", 0))
        for delivery in self.deliveries:
            if not delivery.is_over:
                found += [("step", delivery.token)] * weather.pace
                found += [("kill", delivery.token)] * weather.kills
            if delivery.token not in self.ended:
                likely = delivery.is_running or delivery.is_over
                found += [("lease ends", delivery.token)] * (weather.lease_ends if likely else 1)
        if self.amnesias_left:
            found += [("amnesia", index) for index in self.everywhere if self._may_forget(index)]
        if self.repair or self._to_repair() is not None:
            found += [("repair", 0)] * weather.repair
        if self.forgetting:
            found += [("forget", 0)] * 3
        elif self.forgets_left and any(node.record for node in self.nodes):
            found += [("forget", 0)] * weather.forget
        return found

    def perform(self, operation: Operation) -> None:
        """Let one operation happen."""
        what, number = operation
        if what == "step":
            delivery = self.deliveries[number]
            self._phases[delivery.phase](self, delivery)
        elif what == "deliver":
            self._deliver()
        elif what == "kill":
            self._note(f"d{number} is killed")
            self.deliveries[number].enter("over")
            self.deliveries[number].then = ""
        elif what == "lease ends":
            self._note(f"lease of d{number} ends")
            self.ended.add(number)
        elif what == "amnesia":
            self._amnesia(number)
        elif what == "repair":
            self._repair()
        else:
            self._forget()

    # Deliveries.

    def _deliver(self) -> None:
        token = len(self.deliveries)
        self._note(f"d{token} is delivered", *(("after ack of", sorted(self.acked)) if self.acked else ()))
        self.deliveries.append(Delivery(token, list(self.everywhere), self.generation, frozenset(self.acked)))

    def _claiming(self, delivery: Delivery) -> None:
        """Ask one more node, or decide once all were asked or a quorum answered."""
        if not delivery.todo or (len(delivery.replies) >= self.quorum and self.choose.chance(0.25)):
            self._decide(delivery)
            return
        index = self.choose.take(delivery.todo)
        if self._is_lost():
            return
        node = self.nodes[index]
        rights, wanted = node.has_rights and self._leases_are_over(node), delivery.generation
        reply = claim(node.record, delivery.token, wanted, has_rights=rights, ended=self.ended, rules=self.rules)
        if reply.kind == "granted":
            node.record = reply.record
        if self._is_lost():
            self._note(f"d{delivery.token} claims n{index}:", reply, "(reply lost)")
            return
        self._note(f"d{delivery.token} claims n{index}:", reply)
        delivery.replies[index] = reply

    def _decide(self, delivery: Delivery) -> None:
        """Skip, run or give the claim up, by the replies."""
        replies = list(delivery.replies.values())
        done = self._believed(replies)
        grants = [reply.record for reply in replies if reply.kind == "granted" and reply.record]
        if done:
            self._meet_done(delivery, done, seen=len(replies))
        elif len(grants) >= self.quorum and delivery.token not in self.ended:
            self._enter_body(delivery, grants)
        else:
            self._note(f"d{delivery.token} has no quorum, goes back to the queue")
            delivery.enter("undoing", self.everywhere)

    def _believed(self, replies: list[Reply]) -> list[Record]:
        """Return the done records that count: of the highest generation, and backed by nodes with rights."""
        done = [reply for reply in replies if reply.kind == "done"]
        if self.rules.carry_generation:
            highest = max((reply.generation for reply in replies), default=0)
            done = [reply for reply in done if reply.generation == highest]
        if sum(reply.has_rights for reply in replies) < self.quorum:
            done = [reply for reply in done if reply.has_rights]
        return [reply.record for reply in done if reply.record]

    def _meet_done(self, delivery: Delivery, done: list[Record], seen: int) -> None:
        """Act on a done record that W nodes hold; put it on the others and ask again while fewer do."""
        best, count = most_common(done)
        if count >= self.faults.write_quorum or not self.rules.read_repair:
            self._skip(delivery, best)
        elif delivery.reads == ATTEMPTS_TO_SETTLE:
            self._note(f"d{delivery.token} cannot settle the record, goes back to the queue")
            delivery.enter("undoing", self.everywhere)
        else:
            delivery.reads += 1
            self._settle_first(delivery, done, then="claiming")

    def _settle_first(self, delivery: Delivery, done: list[Record], then: str) -> None:
        """Put the best of `done` where there is none; only where all N differ the lowest token replaces others."""
        delivery.lowest_wins = len(done) == self.faults.nodes and most_common(done)[1] < self.faults.write_quorum
        mending = min(done, key=lambda record: record.token) if delivery.lowest_wins else most_common(done)[0]
        delivery.record, delivery.then = mending, then
        delivery.enter("mending", self.everywhere)

    def _mending(self, delivery: Delivery) -> None:
        """Read repair: put the record on one more node, then go back to where the doubt arose."""
        if not delivery.todo:
            delivery.replies, delivery.held = {}, {}
            delivery.enter(delivery.then, self.everywhere)
            delivery.then = ""
            return
        node, index = self._reach(delivery)
        if node is None or delivery.record is None:
            return
        node.record = put(node.record, delivery.record, self.rules)
        if delivery.lowest_wins:
            node.record = put_lowest(node.record, delivery.record)
        self._note(f"d{delivery.token} puts {delivery.record} on n{index}, which holds", node.record)

    def _skip(self, delivery: Delivery, done: Record) -> None:
        self._note(f"d{delivery.token} is skipped on", done)
        delivery.enter("over")
        self._settle(done)
        if not any(generation >= delivery.sent_in for generation in self.completed):
            self._violate(f"LOST: d{delivery.token} skipped, nothing completed since generation {delivery.sent_in}")

    def _enter_body(self, delivery: Delivery, grants: list[Record]) -> None:
        """Run, unless a forget under way left too few grants of the highest generation: then claim that one."""
        generation = max(record.generation for record in grants)
        agreeing = sum(record.generation == generation for record in grants)
        if self.rules.grants_agree and agreeing < self.quorum:
            self._note(f"d{delivery.token} claims again, in generation {generation}")
            delivery.generation, delivery.replies = generation, {}
            delivery.enter("claiming", self.everywhere)
            return
        delivery.takeovers = max(record.takeovers for record in grants)
        delivery.record = Record("done", generation, delivery.token)
        delivery.enter("running")
        self.runs.setdefault(generation, []).append(delivery)
        self._note(f"d{delivery.token} RUNS in generation {generation}, takeovers {delivery.takeovers}")
        if generation in delivery.acked_before:
            self._violate(f"O1: d{delivery.token} runs although generation {generation} was acknowledged before")

    def _running(self, delivery: Delivery) -> None:
        """Let the body raise or return."""
        if self.choose.chance(0.2):
            self._note(f"d{delivery.token} raises")
            delivery.enter("giving up", self.everywhere)
            return
        self._note(f"d{delivery.token} returns from its body")
        self.completed.add(generation_of(delivery.record) if self.rules.carry_generation else delivery.sent_in)
        delivery.enter("body done")

    def _body_done(self, delivery: Delivery) -> None:
        """Store the result, after a look at the record where another run may have been first."""
        lost = delivery.token in self.ended and self.rules.ask_when_lost
        taken_over = delivery.takeovers and self.rules.ask_when_taken_over
        if (lost or taken_over) and not self._ask(delivery):
            return
        self._note(f"d{delivery.token} stores", delivery.record)
        delivery.enter("completing", self.everywhere)
        self._check_result(delivery.record)

    def _ask(self, delivery: Delivery) -> bool:
        """Look at the record: True if the result may be stored now, after another run's record was adopted."""
        seen = [node for node in self.nodes if not self._is_lost()]
        generation = generation_of(delivery.record)
        if self.rules.carry_generation and any(generation_of(node.record) > generation for node in seen):
            self._note(f"d{delivery.token} was forgotten, stores nothing")
            delivery.enter("over")
            return False
        done = [
            node.record
            for node in seen
            if node.record and node.record.state == "done" and node.record.generation == generation
        ]
        if not done:
            voters = [node for node in seen if node.has_rights or not self.rules.absence_needs_rights]
            return len(voters) >= self.quorum
        best, count = most_common(done)
        if count >= self.faults.write_quorum:
            self._note(f"d{delivery.token} adopts", best)
            delivery.record = best
            return True
        if len(seen) == self.faults.nodes:
            for node in self.nodes:
                node.record = put(node.record, best, self.rules)
        return False

    def _completing(self, delivery: Delivery) -> None:
        """Record the completion on one more node; acknowledged once W nodes hold the same record."""
        if not delivery.todo:
            self._next_attempt(delivery)
            return
        node, index = self._reach(delivery)
        if node is None or delivery.record is None:
            return
        node.record = held = complete(node.record, delivery.record, self.rules)
        if self._is_lost() or held is None:
            self._note(f"d{delivery.token} completes on n{index}:", held, "(reply lost)")
            return
        self._note(f"d{delivery.token} completes on n{index}:", held)
        if self.rules.carry_generation and held.generation > delivery.record.generation:
            self._note(f"d{delivery.token} was forgotten, ends")
            delivery.enter("over")
            return
        delivery.held[index] = held
        best, count = most_common(list(delivery.held.values()))
        if not self.rules.same_record:
            best, count = delivery.record, len(delivery.held)
        if count >= self.faults.write_quorum:
            self._acknowledge(delivery, best)

    def _next_attempt(self, delivery: Delivery) -> None:
        """Ask all nodes again, after a split over all of them was settled."""
        held = list(delivery.held.values())
        if len(held) == self.faults.nodes:
            self._settle_first(delivery, held, then="completing")
            return
        delivery.held = {}  # acknowledgements count within one attempt only
        delivery.enter("completing", self.everywhere)

    def _acknowledge(self, delivery: Delivery, done: Record) -> None:
        self._note(f"d{delivery.token} is ACKNOWLEDGED with", done)
        delivery.enter("over")
        self.acked.add(done.generation)
        self._settle(done)

    def _undoing(self, delivery: Delivery) -> None:
        """Put back on one more node what was there before the claim."""
        self._leave(delivery, lambda record: record.previous)

    def _giving_up(self, delivery: Delivery) -> None:
        """Free the claim on one more node after the body raised."""
        keep = self.rules.abandon_keeps_takeovers
        self._leave(
            delivery, lambda record: Record("free", record.generation, takeovers=record.takeovers if keep else 0)
        )

    def _leave(self, delivery: Delivery, after: Callable[[Record], Record | None]) -> None:
        if not delivery.todo:
            delivery.enter("over")
            return
        node, index = self._reach(delivery)
        if node is None:
            return
        node.record = release(node.record, delivery.token, after)
        self._note(f"d{delivery.token} leaves n{index}, which holds", node.record)

    def _reach(self, delivery: Delivery) -> tuple[Node | None, int]:
        """Pick the next node of a round; None if the command never arrives."""
        index = self.choose.take(delivery.todo)
        return (None if self._is_lost() else self.nodes[index]), index

    def _is_lost(self) -> bool:
        return self.choose.chance(self.weather.loss)

    _phases: dict[str, Callable[[World, Delivery], None]] = {  # noqa: RUF012 - a table of the methods above
        "claiming": _claiming,
        "mending": _mending,
        "undoing": _undoing,
        "running": _running,
        "giving up": _giving_up,
        "body done": _body_done,
        "completing": _completing,
    }

    # Nodes that forget, and the operator.

    def _may_forget(self, index: int) -> bool:
        """Say whether a node may forget: enough others remember, and no double run is unsettled."""
        under_repair = self.repair is not None and self.repair.node == index
        if not self.nodes[index].has_rights and not under_repair:
            return False  # nothing new to forget but what it took since
        rememberers = sum(node.has_rights for other, node in enumerate(self.nodes) if other != index)
        if rememberers < self.rememberers_needed:
            return False
        return self.faults.amnesia_in_double_run or not self._has_double_run()

    def _has_double_run(self) -> bool:
        """Say whether two runs of a generation are unsettled or may start, or both left a done record somewhere."""
        if any(delivery.is_running and delivery.token in self.ended for delivery in self.deliveries):
            return True
        done = [node.record for node in self.nodes if node.record and node.record.state == "done"]
        if len({record.generation for record in done}) < len({(record.generation, record.token) for record in done}):
            return True
        return any(
            len(runs) > 1 and (generation not in self.settled or any(run.is_running for run in runs))
            for generation, runs in self.runs.items()
        )

    def _amnesia(self, index: int) -> None:
        self._note(f"n{index} FORGETS")
        self.amnesias_left -= 1
        node = self.nodes[index]
        node.record, node.has_rights, node.identity = None, False, node.identity + 1
        node.awaited = {(delivery.token, delivery.attempt) for delivery in self.deliveries if not delivery.is_over}
        node.leases = {token for token, _ in node.awaited}
        node.awaits_forget = self.forgetting is not None
        if self.repair and self.repair.node == index and self.rules.flag_names_identity:
            self.repair = None

    def _leases_are_over(self, node: Node) -> bool:
        """Say whether the guard's wait can be over: a lease from before lives on only where a quorum renews it."""
        if not self.rules.grants_wait_for_leases:
            return True
        held = Counter(other.record.token for other in self.nodes if other.record and other.record.state == "running")
        return all(
            token in self.ended or self.deliveries[token].is_over or held[token] >= self.quorum for token in node.leases
        )

    def _to_repair(self) -> int | None:
        """Return a node whose repair may start: what was counted before it forgot is over."""
        under_way = {
            (delivery.token, delivery.attempt)
            for delivery in self.deliveries
            if delivery.phase in ("claiming", "mending", "completing")
        }
        for index, node in enumerate(self.nodes):
            waits = node.awaited & under_way or (node.awaits_forget and self.forgetting)
            if not node.has_rights and not (self.rules.repair_waits and waits):
                return index
        return None

    def _repair(self) -> None:
        """Start a repair, copy from one more node that remembers, or give the rights back."""
        if self.repair is None:
            index = self._to_repair()
            if index is not None:
                sources = [other for other, node in enumerate(self.nodes) if node.has_rights]
                wanted = self.rememberers_needed - (not self.rules.repair_reads_enough)
                chosen = [self.choose.take(sources) for _ in range(min(wanted, len(sources)))]
                self.repair = Repair(index, self.nodes[index].identity, chosen)
                self._note(f"repair of n{index} starts, reads", tuple(chosen))
            return
        node = self.nodes[self.repair.node]
        if self.repair.sources:
            source = self.repair.sources.pop()
            if self.rules.sources_remember and not self.nodes[source].has_rights:
                self._note(f"repair ends, n{source} has forgotten too")
                self.repair = None
                return
            node.record = copy(node.record, self.nodes[source].record, self.rules)
            self._note(f"repair copies n{source} to n{self.repair.node}, which holds", node.record)
            return
        node.has_rights = True
        self._note(f"n{self.repair.node} has its rights back")
        self.repair = None

    def _forget(self) -> None:
        """Start to forget the key, or write the tombstone on one more node."""
        if self.forgetting is None:
            self.forgets_left -= 1
            generation = max(generation_of(node.record) for node in self.nodes) + 1
            self.forgetting = Forgetting(Record("forgotten", generation), list(self.everywhere))
            return
        index = self.choose.take(self.forgetting.todo)
        tombstone = self.forgetting.tombstone
        if generation_of(self.nodes[index].record) < tombstone.generation:
            self.nodes[index].record = tombstone
        self._note(f"operator forgets the key on n{index}")
        if not self.forgetting.todo:
            self.generation = tombstone.generation
            self.forgetting = None
            self._note(f"forgotten everywhere, generation {self.generation}")
            self._deliver()

    # The promises.

    def _settle(self, done: Record) -> None:
        self._check_result(done)
        self.settled.setdefault(done.generation, done.token)

    def _check_result(self, done: Record | None) -> None:
        """Check that a result that is stored, settled or replayed now is the settled one, if there is one."""
        if done is None:
            return
        settled = self.settled.get(done.generation, done.token)
        if settled != done.token:
            self._violate(f"O3: result d{done.token} after d{settled} was settled for generation {done.generation}")

    def _violate(self, violation: str) -> None:
        self.violation = self.violation or violation

    def _note(self, *parts: object) -> None:
        self.story.append(parts)


def most_common(done: Sequence[Record]) -> tuple[Record, int]:
    """Return the record that most nodes hold, the lowest token among equals, and how many hold it."""
    counts = Counter((record.generation, record.token) for record in done)
    (generation, token), count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return Record("done", generation, token), count


# Searching, shortening, replaying.

Step = tuple[Operation, Sequence[float]]


@dataclass(frozen=True)
class Schedule:
    """Everything that decides how a world goes."""

    seed: int
    rules: Rules
    faults: Faults
    steps: tuple[Step, ...]

    def replay(self) -> World:
        """Run the steps again; one that can no longer happen is left out."""
        source = random.Random(self.seed)
        world = World(self.rules, self.faults, Weather.of(source, self.faults), Chooser(source))
        for operation, tape in self.steps:
            if operation in world.operations():
                world.choose.begin_step(tape)
                world.perform(operation)
            if world.violation:
                break
        return world

    def shortened(self) -> Schedule:
        """Return a schedule that breaks the same promise and from which no single step can be left out."""
        promise = self.replay().violation.split(":")[0]
        shortest = self
        for size in (16, 8, 4, 2, 1, 1):
            start = 0
            while start < len(shortest.steps):
                shorter = replace(shortest, steps=shortest.steps[:start] + shortest.steps[start + size :])
                if shorter.replay().violation.startswith(f"{promise}:"):
                    shortest = shorter
                else:
                    start += size
        return shortest

    @property
    def command(self) -> str:
        """Return the command that replays this seed."""
        words = [f"python -m tests.simulation.records_model --seed {self.seed}"]
        words += [f"--without {rule.name}" for rule in fields(Rules) if not getattr(self.rules, rule.name)]
        for option in fields(Faults):
            value, name = getattr(self.faults, option.name), option.name.replace("_", "-")
            if value != option.default:
                words.append({True: f"--{name}", False: f"--no-{name}"}.get(value, f"--{name} {value}"))
        return " ".join(words)

    def __str__(self) -> str:
        world = self.replay()
        removed = [rule.name for rule in fields(Rules) if not getattr(self.rules, rule.name)]
        lines = [f"seed {self.seed}, without {', '.join(removed) or 'nothing'}: {world.violation or 'no violation'}"]
        return "\n".join(lines + [f"  {' '.join(map(str, parts))}" for parts in world.story])


def run(seed: int, rules: Rules, faults: Faults) -> tuple[World, Schedule]:
    """Play the schedule of one seed."""
    source = random.Random(seed)
    world = World(rules, faults, Weather.of(source, faults), Chooser(source))
    steps: list[Step] = []
    for _ in range(STEPS):
        operations = world.operations()
        if not operations:
            break
        operation = source.choice(operations)
        world.choose.begin_step()
        world.perform(operation)
        steps.append((operation, world.choose.drawn))
        if world.violation:
            break
    return world, Schedule(seed, rules, faults, tuple(steps))


def search(rules: Rules, faults: Faults, schedules: int, first_seed: int = 0) -> tuple[int, Schedule | None]:
    """Play seeded schedules until one breaks a promise.

    Returns:
        How many were played, and the schedule that broke a promise (not yet shortened) or None.
    """
    for count, seed in enumerate(range(first_seed, first_seed + schedules), 1):
        world, schedule = run(seed, rules, faults)
        if world.violation:
            return count, schedule
    return schedules, None


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay one seed from the command line."""
    parser = argparse.ArgumentParser(description="Replay one schedule of the completion records model.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--without", action="append", default=[], choices=[rule.name for rule in fields(Rules)])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--write-quorum", type=int, default=2)
    parser.add_argument("--deliveries", type=int, default=6)
    parser.add_argument("--no-amnesia", dest="amnesia", action="store_false")
    parser.add_argument("--no-forget", dest="forget", action="store_false")
    parser.add_argument("--amnesia-in-double-run", action="store_true")
    parser.add_argument("--whole", action="store_true", help="print every step, not the shortest schedule")
    options = parser.parse_args(arguments)
    faults = Faults(**{name.name: getattr(options, name.name) for name in fields(Faults)})
    world, schedule = run(options.seed, Rules().without(*options.without), faults)
    print(schedule.shortened() if world.violation and not options.whole else schedule)


if __name__ == "__main__":
    main()
