"""The world of the records model: deliveries claim, run, complete and give up, one step at a time."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.records_actors import Delivery, Node
from tests.simulation.records_rules import (
    Record,
    Reply,
    claim,
    complete,
    generation_of,
    most_common,
    put,
    put_lowest,
    release,
)
from tests.simulation.records_surroundings import Surroundings

__all__ = ["Operation", "World"]

Operation = tuple[str, int]  # what happens, and to which delivery or node

ATTEMPTS_TO_SETTLE = 3  # reads of a delivery that meets unsettled records, before it goes back to the queue


class World(Surroundings):
    """Deliveries among nodes that forget; what may happen next, and what happens then."""

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
