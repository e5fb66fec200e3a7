"""Schedules of locks: clients acquire, hold, extend, release, hand over and attach, while things go wrong.

Profiles:
    uniform   all processes have the same max_ttl; any number of nodes may forget, at any time
    mixed     some have a longer max_ttl and raise the namespace's; a majority of nodes remembers
    liveness  faults stop after a while; then locks must be had in time, and nothing be left behind
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from redlock import scripts
from redlock.errors import FencingUnavailableError, LockHeldError, QuorumUnreachableError, SettingsError
from redlock.fencing import fencing_token
from redlock.lease import Grant, Term
from redlock.plan import Plan, Sleep
from redlock.protocol import LockProtocol
from redlock.scripts import Script
from redlock.settings import Settings
from tests.simulation.faults import Fault, Limits
from tests.simulation.history import (
    LIVENESS_CHECKS,
    LOCK_CHECKS,
    violations,
)
from tests.simulation.scheduler import InterruptedPlanError, Process, Task
from tests.simulation.sim_net import Weather
from tests.simulation.sim_nodes import MARKER_KIND
from tests.simulation.world import DRIFT, Outcome, World, name_scripts

__all__ = ["PROFILES", "play", "profile_of"]

TTL = 10.0
LONG = 30.0
PROFILES = ("uniform", "mixed", "liveness")
name_scripts([script for script in vars(scripts).values() if isinstance(script, Script)])


def profile_of(seed: int) -> str:
    """Return the profile that a campaign plays a seed in."""
    return "liveness" if seed % 20 < 1 else "mixed" if seed % 20 < 6 else "uniform"


class LockWorld(World):
    """One schedule of locks; arguments as for `play`."""

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
        choose = Random(f"locks {seed}")
        timeout = choose.choice((0.05, 0.2, 0.5))
        settings = [
            Settings("n", TTL, LONG if profile == "mixed" and index == 1 else TTL, timeout, DRIFT)
            for index in range(choose.choice((2, 3) if profile == "mixed" else (2, 2, 2, 3)))
        ]
        self.profile = profile
        self.horizon = choose.choice((10.0, 20.0, 30.0))
        limits = Limits(remembering=nodes // 2 + 1 if profile == "mixed" else 0)
        plots = {
            "mixed": ("", "raise", "raise", "keep", "alone", "relay"),
            "uniform": ("",) * 5 + ("heal", "late", "old", "paused"),
        }
        if profile == "uniform" and seed % 37 == 36:
            plots["uniform"] = ("thin",)
        super().__init__(
            seed,
            nodes,
            settings,
            horizon=self.horizon,
            faults=faults,
            limits=limits,
            plots=plots.get(profile, ()) if plot is None else (plot,),
            steps=steps,
            traces=traces,
        )
        self.resources = ["x"] if self.rng.random() < 0.8 else ["x", "y"]
        self.rounds = 3 if self.plot == "thin" else choose.choice((1, 2, 2, 3))
        self.terms: list[tuple[Process, str, str, str, Term]] = []
        self.polls = self.plot in ("raise", "alone", "relay", "old")
        """Whether clients ask again soon, rather than when the holder's lease ends: that admits nodes sooner."""
        self.on_restart = self.start_user
        if profile == "mixed" or self.rng.random() < 0.2:
            self.mark(round(TTL * 1000))
        elif self.rng.random() < 0.2:
            for host in self.hosts:
                host.node.started = -self.rng.uniform(0.0, 12.0)

    # -- what clients do

    def start_user(self, process: Process, index: int) -> None:
        """Let a process begin to use locks."""
        user = User(self, process, self.settings[index])
        Task(process, user.live())

    def other(self, process: Process) -> tuple[Process, Settings]:
        """Return another process than this one."""
        choices = [each for each in zip(self.processes, self.settings, strict=True) if each[0] is not process]
        return self.rng.choice(choices)

    # -- the schedule

    def play(self) -> Outcome:
        for index, process in enumerate(self.processes):
            self.start_user(process, index)
        self.scheduler.run(self.horizon + 2.5 * LONG if self.profile != "liveness" else self.horizon)
        if self.profile == "liveness":
            self.settle_down()
        for process, who, resource, token, term in self.terms:
            self.history.add("extended", self.scheduler.now, who, resource, token, process.true(term.valid_until))
        return self.outcome(self._judged())

    def _judged(self) -> list[str]:
        checks = [*LOCK_CHECKS, *(LIVENESS_CHECKS if self.profile == "liveness" else ())]
        return violations(self.history, checks)

    def settle_down(self) -> None:
        """End all faults but a minority of nodes that stays down, and look whether everything works again."""
        scheduler, rng, settings = self.scheduler, self.rng, self.settings[0]
        rested = [each for each in self.processes if each.is_alive and each.paused_until < scheduler.now]
        self.saboteur.stop()
        self.network.weather = Weather(0.001)
        for process in self.processes:
            for task in process.tasks:
                task.end()
        down = rng.sample(self.hosts, rng.randint(0, (self.size - 1) // 2))
        for host in down:
            host.is_up, host.is_silent = False, rng.random() < 0.5
        process = rested[0] if rested and rng.random() < 0.5 else self.process(settings)
        # A node that says nothing costs its time-out in the attempt that admits the others, and in the one that wins.
        wait = settings.guard_wait * (1 + DRIFT) + 1.0 + 3 * settings.node_timeout
        self.expect("L1", "acquire", [User(self, process, settings)], wait, 0.5)
        rivals = [User(self, self.process(settings), settings) for _ in range(3)]
        self.expect("L4", "contention", rivals, 2.5, 0.2)
        scheduler.run(scheduler.now + 2.2 * settings.max_ttl)
        for host in self.hosts:
            if host not in down:
                host.node.run("ping", scripts.PING.text, [], [])
                left = [key for key in list(host.node.data) if ":lock:" in key and host.node._live(key)]
                eternal = [key for key, entry in host.node.data.items() if entry[1] is None]
                eternal = [key for key in eternal if not key.endswith(MARKER_KIND)]
                self.history.add(
                    "goal", scheduler.now, host.node.name, f"{left + eternal}", more=("L3", 0, len(left + eternal))
                )

    def expect(self, rule: str, resource: str, users: Sequence[User], bound: float, pause: float) -> None:
        """Let users want a fresh resource at once; note how long it took until one of them had it."""
        began = self.scheduler.now
        found: list[float] = []
        for user in users:
            Task(user.process, user.want(resource, bound, pause, lambda: found.append(self.scheduler.now - began)))
        self.scheduler.run(began + bound + 3.0)
        took = round(found[0], 3) if found else None
        self.history.add("goal", self.scheduler.now, "", resource, more=(rule, bound, took))


class User:
    """What one process does with locks, as a plan that never ends well for everybody."""

    def __init__(self, world: LockWorld, process: Process, settings: Settings) -> None:
        self.world = world
        self.process = process
        self.settings = settings
        self.rng = world.rng
        self.who = process.name
        """Names the lease that it has now: a process may have one token twice, as when it is handed back."""
        self.protocol = LockProtocol(settings, world.size, process.clock, world.new_token, self._observed)

    def _observed(self, event: Any) -> None:
        self.world.seen[type(event).__name__] += 1

    def live(self) -> Plan[None]:
        """Use locks for some rounds."""
        is_late = self.settings.max_ttl == LONG and (self.world.plot == "relay" or self.rng.random() < 0.2)
        yield Sleep(self.rng.uniform(6.0, 15.0) if is_late else self.rng.uniform(0.0, 1.0))
        for _ in range(self.world.rounds):
            try:
                yield from self._round(self.rng.choice(self.world.resources))
            except InterruptedPlanError:  # noqa: PERF203 - each round may be interrupted
                self.world.seen["interrupted"] += 1

    def _round(self, resource: str) -> Plan[None]:
        rng, settings = self.rng, self.settings
        ttl = rng.choice((settings.max_ttl, settings.max_ttl, TTL, TTL / 4))
        for _ in range(5 if self.world.polls else 2):
            began = self.world.scheduler.now
            try:
                grant = yield from self.protocol.acquire(
                    resource, settings.ttl_ms("ttl", ttl), rng.choice((0.0, 0.0, 0.0, 0.3)), self.world.pauses()
                )
            except LockHeldError as error:
                self.world.seen["LockHeldError"] += 1
                if error.retry_after is not None and rng.random() < (0.2 if self.world.polls else 0.7):
                    yield Sleep(max(0.0, error.retry_after + rng.choice((-0.003, 0.001, 0.004, 0.02, 0.5))))
                else:
                    yield Sleep(rng.uniform(0.02, 3.0))
            except (QuorumUnreachableError, SettingsError) as error:
                self.world.seen[type(error).__name__] += 1
                yield Sleep(rng.choice((0.1, TTL / 4, TTL * 1.02, TTL * 1.03)))
            else:
                yield from self._hold(grant, began, "acquire")
                return

    def _note_grant(self, grant: Grant, began: float, script: str) -> Term:
        world, process = self.world, self.process
        term = Term(grant.resource, grant.ttl, grant.started, grant.valid_until, process.clock)
        now, until = process.clock(), process.true(grant.valid_until)
        sent = process.sent_at[script, grant.token]
        voters = world.voters.get(grant.token, set()) if script == "acquire" else range(world.size)
        more = (sent, now, grant.valid_until, grant.ttl, DRIFT, voters, world.size)
        time = world.scheduler.now
        self.who = f"{process.name}/{len(world.terms)}"
        world.history.add("granted", time, self.who, grant.resource, grant.token, until, more)
        world.scheduler.tell(process.name, f"has {grant.resource} as {grant.token} until {until:.3f}")
        world.terms.append((process, self.who, grant.resource, grant.token, term))
        world.seen["granted" if script == "acquire" else "attached"] += 1
        try:
            fence = fencing_token(grant, self.settings)
        except FencingUnavailableError:
            world.seen["no fencing token"] += 1
        else:
            world.history.add("fenced", time, self.who, grant.resource, grant.token, until, (began, fence))
        return term

    def _note(self, kind: str, term: Term, token: str) -> None:
        world, process = self.world, self.process
        world.history.add(kind, world.scheduler.now, self.who, term.resource, token, process.true(term.valid_until))
        world.scheduler.tell(process.name, f"{kind} {term.resource} as {token}")

    def _hold(self, grant: Grant, began: float, script: str) -> Plan[None]:
        term = self._note_grant(grant, began, script)
        rng = self.rng
        habits = (2, 3, 4, 2)
        if self.world.plot in ("late", "paused"):
            habits = (1, 1, 2, 6)
        elif self.world.plot == "thin":
            habits = (1, 0, 0, 0) if len(self.world.terms) < 3 else (1, 0, 0, 4)
        elif self.world.plot == "relay":  # somebody else goes on with it, for long
            habits = (1, 6, 1, 0) if self.settings.max_ttl == LONG else (1, 1, 2, 8)
        what = rng.choices(("release", "expire", "extend", "hand over"), habits)[0]
        if what == "extend":
            for _ in range(rng.choice((1, 2, 4))):
                yield Sleep(term.remaining() * rng.choice((0.1, 0.33, 0.33, 0.8, 0.97)))
                if not (yield from self._extend(grant, term)):
                    break
            what = rng.choice(("release", "expire", "hand over"))
        if what == "hand over":
            yield Sleep(term.remaining() * rng.random())
            self._note("stopped", term, grant.token)
            other, settings = self.world.other(self.process)
            if other.is_alive:
                Task(other, User(self.world, other, settings).attach(grant.resource, grant.token))
            return
        yield Sleep(term.remaining() * (rng.random() if what == "release" else rng.uniform(1.0, 1.5)))
        self._note("released", term, grant.token)
        yield from self.protocol.release(grant.resource, grant.token)

    def _extend(self, grant: Grant, term: Term) -> Plan[bool]:
        """Extend as the renewer does: again after a failure, until the lease is extended or lost."""
        while not term.is_lost:
            was = term.valid_until
            if (yield from self.protocol.extend(term, grant.token, grant.fence)):
                process = self.process
                more = (process.sent_at["extend", grant.token], 0.0, term.valid_until, term.ttl, DRIFT)
                if term.valid_until > was:
                    time, until = self.world.scheduler.now, process.true(term.valid_until)
                    self.world.history.add("extended", time, self.who, term.resource, grant.token, until, more)
                self.world.seen["extended"] += 1
                return True
            yield Sleep(max(0.01, term.renew_at - self.process.clock()))
        self.world.seen["lost"] += 1
        return False

    def attach(self, resource: str, token: str) -> Plan[None]:
        """Go on with another process's lease, perhaps too late."""
        rng, settings = self.rng, self.settings
        yield Sleep(rng.choice((0.0, 0.5, TTL * rng.random() * 1.3)))
        ttl_ms = settings.ttl_ms("ttl", rng.choice((settings.max_ttl, settings.max_ttl, TTL, TTL / 4)))
        began = self.world.scheduler.now
        try:
            grant = yield from self.protocol.attach(resource, token, ttl_ms)
        except (LockHeldError, QuorumUnreachableError, SettingsError) as error:
            self.world.seen[f"attach: {type(error).__name__}"] += 1
        else:
            yield from self._hold(grant, began, "extend")

    def want(self, resource: str, wait: float, pause: float, has_it: Callable[[], None]) -> Plan[None]:
        """Acquire with patience and pauses of up to so many seconds, say so, and release."""
        pauses = iter(lambda: self.rng.uniform(pause / 10, pause), None)
        began = self.world.scheduler.now
        try:
            grant = yield from self.protocol.acquire(resource, self.settings.ttl_ms("ttl"), wait, pauses)
        except (LockHeldError, QuorumUnreachableError):
            return
        term = self._note_grant(grant, began, "acquire")
        has_it()
        yield Sleep(0.1)
        self._note("released", term, grant.token)
        yield from self.protocol.release(resource, grant.token)


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
    """Play one schedule.

    Args:
        seed: Of everything random.
        nodes: How many.
        profile: One of `PROFILES`; default the one that goes with the seed.
        faults: A plan of faults in place of the one that the seed means.
        steps: Whether node clocks step, which breaks an assumption.
        traces: Whether to keep a timeline.
        plot: The faults that belong together, as in `faults.plot`; default: one of those that go with the profile.
    """
    chosen = profile or profile_of(seed)
    plan = None if faults is None else list(faults)
    world = LockWorld(seed, nodes, chosen, faults=plan, steps=steps, traces=traces, plot=plot)
    with world.playing():
        return world.play()
