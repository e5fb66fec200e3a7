"""What lock and claim schedules share: nodes, network, processes, faults, and the outcome of a schedule."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import redlock.member
from redlock.events import Event
from redlock.node import Node
from redlock.settings import Settings
from tests.simulation.faults import Fault, Limits, Saboteur, draw, plot, reply_kind
from tests.simulation.history import Entry
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sim_net import Network, VirtualHost, VirtualMembers, Weather
from tests.simulation.sim_nodes import SCRIPT_NAMES, VirtualNode

__all__ = ["DRIFT", "Outcome", "World", "name_scripts"]

DRIFT = 0.01
_TTL = 10.0
"""By what the lengths of faults are measured, in seconds."""
RATES = (1 - DRIFT / 2, 1 + DRIFT / 2)
"""The edges of what is assumed of clocks: within drift/2 of true time."""
ADDRESSES = [Node(f"redis://n{index}") for index in range(9)]
WEATHERS = (
    Weather(0.001),
    Weather(0.004, tail=0.02, loss=0.01, repeats=0.01),
    Weather(0.015, tail=0.06, loss=0.03, repeats=0.03),
)


def name_scripts(scripts: Sequence[Any]) -> None:
    """Let nodes know what scripts are called."""
    SCRIPT_NAMES.update((script.text, script.name) for script in scripts)


@dataclass
class Outcome:
    """What came of one schedule.

    Args:
        seed: Of everything random.
        faults: The plan of faults that was carried out.
        violations: What broke.
        seen: How often things happened.
        digest: A hash of all events: equal for equal schedules.
        history: For the checkers.
        lines: The timeline, if it was asked for.
        ran_for: Seconds of virtual time.
    """

    seed: int
    faults: list[Fault]
    violations: list[str]
    seen: Counter[str]
    digest: int
    history: list[Entry]
    lines: list[tuple[float, str, str]] = field(default_factory=list)
    ran_for: float = 0.0


class World:
    """One schedule in the making.

    Args:
        seed: Of everything random.
        nodes: How many.
        processes: How many.
        settings: Of each process.
        horizon: Seconds within which faults come.
        faults: A plan of faults in place of the one that the seed means.
        limits: What the assumptions allow.
        plots: One of these is played among the other faults; "" for none.
        steps: Whether clocks step, which breaks an assumption.
        traces: Whether to keep a timeline.
    """

    def __init__(
        self,
        seed: int,
        nodes: int,
        settings: Sequence[Settings],
        *,
        horizon: float,
        faults: list[Fault] | None,
        limits: Limits,
        plots: Sequence[str] = (),
        steps: bool = False,
        traces: bool = False,
    ) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, traces=traces)
        self.history = self.scheduler.history
        self.seen = self.scheduler.seen
        self.rng = self.scheduler.rng
        self.settings = list(settings)
        self.size = nodes
        self.voters: dict[str, set[int]] = {}
        self._tokens = (f"t{number}" for number in itertools.count(1))
        self._names = (f"p{number}" for number in itertools.count(0))
        self.addresses = ADDRESSES[:nodes]
        self.hosts = [self._host(index) for index in range(nodes)]
        self.network = Network(self.scheduler, self.hosts, self.rng.choice(WEATHERS))
        self.plot = ""
        planned = self._plan(horizon, plots, steps=steps)  # also for a given plan: it decides on the plot
        self.faults = planned if faults is None else faults
        self.processes = [self.process(each) for each in settings]
        self.saboteur = Saboteur(self.scheduler, self.network, self.processes, self.faults, limits, self._restart)
        for index, process in enumerate(self.processes):
            self._watch(process, index)
        self.on_restart: Callable[[Process, int], None] = lambda _process, _index: None

    # -- making things

    def _plan(self, horizon: float, plots: Sequence[str], *, steps: bool) -> list[Fault]:
        rng = Random(f"faults {self.seed}")
        count = len(self.settings)
        self.plot = rng.choice(plots) if plots else ""
        if self.plot:
            faults = plot(rng, self.plot, self.size, count, _TTL)
            return faults + draw(rng, self.size, count, horizon, _TTL, steps=steps)[: rng.choice((0, 0, 0, 1, 2))]
        return draw(rng, self.size, count, horizon, _TTL, steps=steps)

    def _host(self, index: int) -> VirtualHost:
        rng = self.rng
        rate = rng.choice((*RATES, rng.uniform(*RATES)))
        node = VirtualNode(f"n{index}", self.scheduler.true_time, rate, rng.uniform(-4.0, 4.0))
        node.on_call = self._called
        return VirtualHost(index, node)

    def process(self, settings: Settings) -> Process:
        """Return a new client process, not yet connected."""
        rng = self.rng
        rate = rng.choice((*RATES, rng.uniform(*RATES)))

        def members(process: Process) -> VirtualMembers:
            return VirtualMembers(process, self.network, self.addresses, settings.node_timeout, self._observed)

        name = next(self._names)
        return Process(self.scheduler, name, rate, reads_always=rng.random() < 0.5, members=members)

    def new_token(self) -> str:
        """Return an owner token."""
        return next(self._tokens)

    def pauses(self) -> Iterator[float]:
        """Return pauses between attempts, as the default ones."""
        while True:
            yield self.rng.uniform(0.02, 0.2)

    def mark(self, max_ttl_ms: int, rights: str = "records") -> None:
        """Let all nodes vote since ever."""
        for host in self.hosts:
            marker = f"{host.node.identity} 0 {max_ttl_ms} {max_ttl_ms} {rights} -"
            host.node.data[self.settings[0].key("marker")] = marker, None

    def _watch(self, process: Process, index: int) -> None:
        process.on_ambush = lambda what: self.saboteur.happened(what, index)

    def _restart(self, index: int) -> None:
        """Start a process in the place of one that was killed."""
        if self.saboteur.is_over:
            return
        self.processes[index] = self.process(self.settings[index])
        self._watch(self.processes[index], index)
        self.on_restart(self.processes[index], index)

    # -- hearing of things

    def _observed(self, event: Event) -> None:
        self.seen[type(event).__name__] += 1

    def _called(
        self, node: VirtualNode, name: str, keys: list[str], args: list[str], reply: Any, before: Any, after: Any
    ) -> None:
        kind = reply_kind(reply)
        scheduler = self.scheduler
        index = int(node.name[1:])
        if name in ("acquire", "extend", "claim", "renew"):
            if kind == "grant":
                self.voters.setdefault(args[0], set()).add(index)
                if name in ("acquire", "claim"):
                    self.saboteur.happened("grant", index)
            elif kind == "refusal":
                self.seen[f"refusal: {reply[1]}"] += 1
                self.saboteur.happened("refusal", index)
        elif kind == "grant":
            self.seen[f"{name} done"] += 1
            if name in ("admit", "copy"):
                self.saboteur.happened(name, index)
        if before != after and name != "admit" and keys:
            until = node.true(after[1]) if after is not None and after[1] is not None else 0.0
            self.history.add("write", scheduler.now, node.name, keys[0], args[0], until, (name, before, after))
        if scheduler.lines is not None:
            scheduler.tell(
                node.name, f"{name} {' '.join(args)[:60]} -> {reply if kind else getattr(reply, 'text', reply)}"
            )

    # -- playing

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Replace what the shipping members take from outside: the random source of their pauses."""
        with patch.object(redlock.member, "random", self.rng):
            try:
                yield
            finally:
                self.scheduler.close()

    def outcome(self, violations: list[str]) -> Outcome:
        """Return what came of it."""
        scheduler = self.scheduler
        return Outcome(
            self.seed,
            self.faults,
            violations,
            self.seen,
            scheduler.digest,
            list(self.history),
            scheduler.lines or [],
            scheduler.now,
        )
