"""Schedules of claims: deliveries of a few keys are run once, while workers and nodes die, forget and are repaired.

Each worker takes deliveries, claims, runs a body under a renewed claim, and records its completion or gives up. Where
its lease was lost, or an earlier run may still be under way, it asks the record first. Deliveries come back when a
worker is killed, an acknowledgement is lost, a key was busy or no quorum could be asked. A repair runs in the
background of the worker that meets a node without rights. Now and then an operator forgets a key.

Kept: as many nodes that remember as a repair reads. A restart counts as forgetting here, also with all data kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from dramatiq_idem import claims, lookup, repair
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.claims import ClaimProtocol
from dramatiq_idem.errors import ForgetError
from dramatiq_idem.judgement import Busy, Completed
from dramatiq_idem.lookup import Lookup
from dramatiq_idem.record import Quorums, State
from dramatiq_idem.repair import Repair
from redlock import scripts
from redlock.plan import Plan, Sleep
from redlock.protocol import LockProtocol
from redlock.renewal import Renewals
from redlock.scripts import Script
from redlock.settings import Settings
from tests.simulation.faults import Fault, Limits
from tests.simulation.history import CLAIM_CHECKS, LIVENESS_CHECKS, violations
from tests.simulation.scheduler import InterruptedPlanError, Process, Task
from tests.simulation.sim_net import Weather
from tests.simulation.world import DRIFT, Outcome, World, name_scripts

__all__ = ["PROFILES", "play", "profile_of"]

PROFILES = ("usual", "liveness")
TTL = 10.0
RETENTION_MS = 86_400_000
FRESH = "fresh"
"""The key that has to be run once all faults have ended."""
_REPAIR_PAUSES = (0.2, 1.0, 2.0, 5.0, 10.0)
name_scripts(
    [made for module in (scripts, claims, lookup, repair) for made in vars(module).values() if isinstance(made, Script)]
)


def profile_of(seed: int) -> str:
    """Return the profile that a campaign plays a seed in."""
    return "liveness" if seed % 20 < 1 else "usual"


@dataclass(eq=False)
class Delivery:
    """A message on its way to a worker."""

    key: str
    attempts: int = 0


class ClaimWorld(World):
    """One schedule of claims; arguments as for `play`."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        profile: str,
        *,
        faults: list[Fault] | None,
        steps: bool,
        traces: bool,
        plot: str | None,
    ) -> None:
        choose = Random(f"claims {seed}")
        timeout = choose.choice((0.05, 0.2, 0.5))
        settings = [Settings("c", TTL, TTL, timeout, DRIFT)] * choose.choice((2, 2, 3))
        self.profile = profile
        self.quorums = Quorums(nodes, choose.choice((nodes // 2 + 1,) * 4 + (nodes,)))
        limits = Limits(remembering=self.quorums.remembering, needs_rights=True)
        super().__init__(
            seed,
            nodes,
            settings,
            horizon=choose.choice((15.0, 30.0)),
            faults=faults,
            limits=limits,
            plots=("", "", "relay", "heal", "lonely", "lonely", "lonely", "again") if plot is None else (plot,),
            steps=steps,
            traces=traces,
        )
        self.horizon = 60.0 if profile == "usual" else 25.0
        self.queue: list[tuple[float, Delivery]] = []
        self.in_hand: dict[str, list[Delivery]] = {}
        self.on_restart = self.start_worker
        if self.rng.random() < 0.7:
            self.mark(round(TTL * 1000))
        self._fill_queue()

    def _fill_queue(self) -> None:
        rng = self.rng
        if self.plot in ("lonely", "again") and rng.random() < 0.6:
            # Nobody asks for the key while nodes forget and are repaired, for the sake of another key.
            moments = [(0.0, "k"), (rng.uniform(28.0, 48.0), "k"), *((rng.uniform(2.0, 30.0), "l") for _ in range(8))]
        else:
            keys = ("k",) if rng.random() < 0.75 else ("k", "l")
            counts = {key: rng.choice((2, 2, 3, 4)) for key in keys}
            times = (0.0, 0.5, rng.uniform(0.0, 20.0), rng.uniform(15.0, 50.0))
            moments = [(rng.choice(times), key) for key, count in counts.items() for _ in range(count)]
        self.queue += [(time, Delivery(key)) for time, key in moments]

    # -- the queue

    def take(self, process: Process) -> Delivery | None:
        """Return a delivery that is due, now in the hands of a process."""
        due = [item for item in self.queue if item[0] <= self.scheduler.now]
        if not due:
            return None
        item = self.rng.choice(due)
        self.queue.remove(item)
        self.in_hand.setdefault(process.name, []).append(item[1])
        return item[1]

    def put_back(self, process: Process, delivery: Delivery, delay: float) -> None:
        """Deliver again after a while; not for ever."""
        self.acknowledge(process, delivery)
        delivery.attempts += 1
        if delivery.attempts < 10:
            self.queue.append((self.scheduler.now + delay, delivery))

    def acknowledge(self, process: Process, delivery: Delivery) -> None:
        self.in_hand[process.name].remove(delivery)

    # -- the schedule

    def start_worker(self, process: Process, index: int) -> None:
        """Let a process begin to work; what the killed one before it had in hand is delivered again."""
        for name, deliveries in self.in_hand.items():
            if not any(other.name == name and other.is_alive for other in self.processes):
                self.queue += [(self.scheduler.now + 0.5, delivery) for delivery in deliveries]
                deliveries.clear()
        worker = Worker(self, process, self.settings[index])
        Task(process, worker.live())
        if self.rng.random() < 0.3:
            Task(process, worker.live())

    def play(self) -> Outcome:
        for index, process in enumerate(self.processes):
            self.start_worker(process, index)
        if self.rng.random() < 0.15:
            Task(self.processes[0], self._forget())
        self.scheduler.run(self.horizon)
        checks = [*CLAIM_CHECKS]
        if self.profile == "liveness":
            self.settle_down()
            checks += LIVENESS_CHECKS
        return self.outcome(violations(self.history, checks))

    def _forget(self) -> Plan[None]:
        plans = Lookup(self.settings[0], self.quorums)
        yield Sleep(self.rng.uniform(1.0, 25.0))
        try:
            generation = yield from plans.forget("k", RETENTION_MS, force=self.rng.random() < 0.5)
        except (ForgetError, InterruptedPlanError):
            self.seen["ForgetError"] += 1
        else:
            self.seen["forgotten"] += 1
            self.scheduler.tell("", f"k is forgotten, generation {generation}")

    def settle_down(self) -> None:
        """End all faults; then a fresh key must be run, and no claim be left running."""
        scheduler, settings = self.scheduler, self.settings[0]
        self.saboteur.stop()
        self.network.weather = Weather(0.001)
        for process in self.processes:
            for task in process.tasks:
                task.end()
        self.queue.clear()
        began = scheduler.now
        wait = 3 * settings.guard_wait + 20.0  # the guard's wait, the repair's, its pauses
        worker = Worker(self, self.process(settings), settings)
        self.in_hand[worker.process.name] = []
        self.queue.append((began, Delivery(FRESH)))
        Task(worker.process, worker.live(until=began + wait))
        scheduler.run(began + wait)
        done = [entry.time - began for entry in self.history if entry.kind == "recorded" and entry.key == f"{FRESH} 0"]
        self.history.add("goal", scheduler.now, "", FRESH, more=("L1", wait, done[0] if done else None))


class Holding:
    """A claim in the hands of a process's renewer."""

    def __init__(self, rules: ClaimProtocol, claim: Claim, key: str, on_lost: Callable[[str], None]) -> None:
        self._rules = rules
        self._claim = claim
        self.key = key
        self.token = claim.record.token
        self.noted_until = claim.term.valid_until
        self.on_lost = on_lost

    @property
    def term(self) -> Any:
        return self._claim.term

    def renewal(self) -> Plan[bool]:
        return self._rules.renew(self._claim)


class Worker:
    """What one process does with deliveries."""

    def __init__(self, world: ClaimWorld, process: Process, settings: Settings) -> None:
        self.world = world
        self.process = process
        self.rng = world.rng
        self.lease_ms = round(TTL * 1000)
        observer = world._observed
        self.rules = ClaimProtocol(
            settings, world.quorums, process.clock, world.new_token, observer, self._on_forgetful
        )
        self.lookup = Lookup(settings, world.quorums)
        locks = LockProtocol(settings, world.size, process.clock, world.new_token, observer)
        self.repair = Repair(settings, world.quorums, locks, observer, [address.name for address in world.addresses])
        self.renewals = Renewals()
        self._repairs = False
        self._renews = False

    # -- in the background

    def _on_forgetful(self) -> None:
        self.world.seen["met a forgetful node"] += 1
        if not self._repairs:
            self._repairs = True
            Task(self.process, self._repair())

    def _repair(self) -> Plan[None]:
        try:
            for pause in _REPAIR_PAUSES:
                yield Sleep(pause)
                if (yield from self.repair.repair()):
                    self.world.seen["repaired"] += 1
                    break
        except InterruptedPlanError:
            self.world.seen["interrupted"] += 1
        finally:
            self._repairs = False

    def _renew(self) -> Plan[None]:
        """Extend what is due, as the renewer's thread does."""
        try:
            while (left := self.renewals.until_next(self.process.clock())) is not None:
                if left > 0:
                    yield Sleep(min(left, 1.0))
                    continue
                due = self.renewals.due(self.process.clock())
                yield from Renewals.extend(due)
                for holding in due:
                    self._note_renewal(holding)
                for tell in self.renewals.lost(due):
                    tell()
        except InterruptedPlanError:
            self.world.seen["interrupted"] += 1
        finally:
            self._renews = False

    def _note_renewal(self, holding: Any) -> None:
        until, process = holding.term.valid_until, self.process
        if until > holding.noted_until:
            more = (process.sent_at["renew", holding.token], 0.0, until, holding.term.ttl, DRIFT)
            self._note("extended", holding.key, holding.token, process.true(until), more)
            holding.noted_until = until

    # -- deliveries

    def live(self, until: float | None = None) -> Plan[None]:
        """Work until a time; default until the schedule's end."""
        while until is None or self.world.scheduler.now < until:
            delivery = self.world.take(self.process)
            if delivery is None:
                if until is None and not self.world.queue and not any(self.world.in_hand.values()):
                    return
                yield Sleep(self._until_next())
                continue
            try:
                yield from self._process(delivery)
            except InterruptedPlanError:
                self.world.seen["interrupted"] += 1
                self.world.put_back(self.process, delivery, 1.0)

    def _until_next(self) -> float:
        """Return how long to wait for a delivery."""
        due = min((time for time, _ in self.world.queue), default=0.0)
        return max(2.0, min(due - self.world.scheduler.now, 5.0))

    def _note(self, kind: str, key: str, token: str, until: float = 0.0, more: Any = None) -> None:
        world = self.world
        world.history.add(kind, world.scheduler.now, self.process.name, key, token, until, more)
        world.scheduler.tell(self.process.name, f"{kind} {key} as {token} {more if isinstance(more, str) else ''}")
        world.seen[kind] += 1
        if kind == "completing" and self.process in world.processes:
            world.saboteur.happened(kind, world.processes.index(self.process))

    def _process(self, delivery: Delivery) -> Plan[None]:
        world, rng = self.world, self.rng
        asked = world.scheduler.now
        request = ClaimRequest(delivery.key, "", "", self.lease_ms, RETENTION_MS)
        outcome = yield from self.rules.claim(request)
        if isinstance(outcome, Claim):
            yield from self._run(delivery, outcome, asked)
        elif isinstance(outcome, Completed):
            record = outcome.record
            self._note("skipped", f"{delivery.key} {record.generation}", record.token, more=record.tail)
            world.acknowledge(self.process, delivery)
        else:
            world.seen[type(outcome).__name__] += 1
            delay = min(outcome.left, 0.5 * 2**delivery.attempts) if isinstance(outcome, Busy) else 6.0
            world.put_back(self.process, delivery, delay * rng.uniform(0.8, 1.2))

    def _run(self, delivery: Delivery, claim: Claim, asked: float) -> Plan[None]:
        world, process, rng = self.world, self.process, self.rng
        token, term = claim.record.token, claim.term
        key = f"{delivery.key} {claim.record.generation}"
        sent = process.sent_at["claim", token]
        more = (sent, process.clock(), term.valid_until, term.ttl, DRIFT, world.voters.get(token, set()), world.size)
        self._note("claimed", key, token, process.true(term.valid_until), (*more, asked))
        if claim.is_contested:
            world.seen["contested"] += 1
        holding = Holding(self.rules, claim, key, lambda _cause: self._note("lost", key, token))
        self.renewals.add(holding)
        if not self._renews:
            self._renews = True
            Task(process, self._renew())
        is_over = False
        try:
            yield Sleep(rng.choice((0.05, 1.0, TTL * rng.random() * 1.8)))
            is_over = True
        finally:
            if process.is_alive:
                self._end(key, claim)
            if not is_over and process.is_alive:  # interrupted: as if the body had raised
                self._note("abandoned", key, token)
        if rng.random() < 0.15 and delivery.key != FRESH:  # a body that always raises never reaches the goal
            self._note("abandoned", key, token)
            self.renewals.remove(holding)
            state = State.FREE if rng.random() < 0.7 else State.FAILED
            yield from self.rules.abandon(claim, state, "")
            world.put_back(process, delivery, 0.5)
            return
        yield from self._complete(delivery, claim, key)
        self.renewals.remove(holding)

    def _end(self, key: str, claim: Claim) -> None:
        """Note until when the run was protected, and that its body is over."""
        until = self.process.true(claim.term.valid_until)
        history, now, name, token = self.world.history, self.world.scheduler.now, self.process.name, claim.record.token
        history.add("extended", now, name, key, token, until)
        history.add("finished", now, name, key, token)

    def _complete(self, delivery: Delivery, claim: Claim, key: str) -> Plan[None]:
        world, rng, token = self.world, self.rng, claim.record.token
        if claim.term.is_lost or claim.is_contested:
            found = yield from self.lookup.completion(delivery.key)
            if found is not None and found.generation >= claim.record.generation:
                self._note("skipped", f"{delivery.key} {found.generation}", token, more=found.tail)
                self._note("unrecorded", key, token)
                world.acknowledge(self.process, delivery)
                return
        self._note("completing", key, token)
        for _ in range(rng.choice((1, 3, 8))):
            recorded = yield from self.rules.complete(claim, f'"{token}"')
            if recorded is not None:
                if recorded.is_forgotten:
                    self._note("unrecorded", key, token, more="forgotten")
                else:
                    if recorded.record.token != token:
                        world.seen["double run"] += 1
                    self._note("recorded", key, token, more=recorded.record.tail)
                self._settle(delivery)
                return
            yield Sleep(rng.choice((0.2, 0.2, 5.0)))
        self._note("unrecorded", key, token)
        self._settle(delivery)

    def _settle(self, delivery: Delivery) -> None:
        """Acknowledge; now and then the acknowledgement is lost, and the message comes again."""
        if self.rng.random() < 0.35:
            self.world.seen["acknowledgement lost"] += 1
            self.world.put_back(self.process, delivery, self.rng.choice((0.1, 5.0)))
        else:
            self.world.acknowledge(self.process, delivery)


def play(
    seed: int,
    nodes: int = 3,
    profile: str | None = None,
    *,
    faults: Iterable[Fault] | None = None,
    steps: bool = False,
    traces: bool = False,
    plot: str | None = None,
) -> Outcome:
    """Play one schedule; arguments as for locks."""
    plan = None if faults is None else list(faults)
    chosen = profile or profile_of(seed)
    world = ClaimWorld(seed, nodes, chosen, faults=plan, steps=steps, traces=traces, plot=plot)
    with world.playing():
        return world.play()
