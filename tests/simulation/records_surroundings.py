"""What surrounds the deliveries of the records model: nodes that forget, repairs, the operator, and the promises."""

from __future__ import annotations

from collections import Counter

from tests.simulation.records_actors import Chooser, Delivery, Forgetting, Node, Repair, Weather
from tests.simulation.records_rules import Faults, Record, Rules, copy, generation_of

__all__ = ["Surroundings"]


class Surroundings:
    """Nodes that forget and are repaired, the operator, and the history that the promises are checked against."""

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

    def _deliver(self) -> None:
        token = len(self.deliveries)
        self._note(f"d{token} is delivered", *(("after ack of", sorted(self.acked)) if self.acked else ()))
        self.deliveries.append(Delivery(token, list(self.everywhere), self.generation, frozenset(self.acked)))

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
