"""What goes wrong in a schedule: a plan of faults drawn from its seed, and how each is carried out.

A fault comes at a time, or as an ambush: shortly after a node's n-th grant, refusal or admission, or right before or
after a process's n-th round. A plan is a list, so that a failing one can be made shorter fault by fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sim_net import Network, VirtualHost
from tests.simulation.sim_nodes import MARKER_KIND

__all__ = ["KINDS", "Fault", "Limits", "Saboteur", "draw", "plot"]

NODE_KINDS = (
    "crash, data kept",
    "crash, data lost",
    "crash, data partly lost",
    "flush",
    "failover",
    "freeze",
    "cut",
    "script flush",
)
PROCESS_KINDS = ("pause", "kill", "interrupt")
KINDS = NODE_KINDS + PROCESS_KINDS
FORGETTING = ("crash, data lost", "crash, data partly lost", "flush", "failover")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Args:
        kind: One of `KINDS`, or "clock step".
        target: Index of the node or process.
        at: When, in seconds; with an ambush, how long after it.
        lasts: For how many seconds; for a clock step, by how many.
        ambush: What it waits for, or nothing: "grant", "refusal", "admit", "copy" of a node; "ask", "settle",
            "completing" of a process.
        count: At which of those it strikes.
        amount: Writes that are lost, or which processes are cut off (a bit each).
        is_silent: Whether a machine that is down says nothing.
        of: Index of the node or process of which the ambush is; default the target.
    """

    kind: str
    target: int
    at: float
    lasts: float
    ambush: str = ""
    count: int = 0
    amount: int = 0
    is_silent: bool = False
    of: int = -1

    @property
    def waits_for(self) -> tuple[str, int, int]:
        """The moment of the ambush: what, of which node or process, and at which time."""
        return self.ambush, self.target if self.of < 0 else self.of, self.count

    def __str__(self) -> str:
        who = "process" if self.kind in PROCESS_KINDS else "node"
        whose = "its" if self.of < 0 else f"{self.of}'s"
        when = f"{self.at:.3f} s after {whose} {self.ambush} no. {self.count}" if self.ambush else f"at {self.at:.3f} s"
        return f"{self.kind} of {who} {self.target} {when}, for {self.lasts:.3f} s (amount {self.amount})"


@dataclass(frozen=True)
class Limits:
    """What the assumptions allow.

    Args:
        remembering: Nodes that must be left that have forgotten nothing since they were admitted.
        needs_rights: Whether only nodes count that may speak for the records; then every restart is forgetting.
    """

    remembering: int = 0
    needs_rights: bool = False


def draw(rng: Random, nodes: int, processes: int, horizon: float, ttl: float, *, steps: bool = False) -> list[Fault]:
    """Return a plan of faults that have nothing to do with each other."""
    faults = []
    weights = (1.0, 2.5, 1.5, 1.0, 1.2, 1.0, 2.0, 0.4, 2.5, 0.7, 0.7)
    for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4, 5, 6))):
        kind = rng.choices(KINDS, weights)[0]
        if steps and rng.random() < 0.5:
            faults.append(Fault("clock step", rng.randrange(nodes), rng.uniform(0, horizon), rng.uniform(-2, 2) * ttl))
            continue
        target = rng.randrange(processes if kind in PROCESS_KINDS else nodes)
        lasts = rng.choice((0.02, 0.3, 0.1 * ttl, rng.uniform(0, 2.5) * ttl))
        ambush, count, at = "", 0, rng.uniform(0, horizon)
        if rng.random() < 0.55:
            choices = ("ask", "settle") if kind in PROCESS_KINDS else ("grant", "grant", "refusal", "admit")
            ambush, count = rng.choice(choices), rng.choice((1, 1, 1, 2, 2, 3, 4, 6))
            at = rng.choice((0.0, 0.0005, 0.005, 0.05, 0.5, 3.0))
            if kind == "pause":
                lasts = rng.choice((0.3, rng.uniform(0.8, 1.1) * ttl, rng.uniform(0, 2.5) * ttl))
        amount = rng.choice((1, 2, 3, 5, 8)) if "partly" in kind or kind == "failover" else rng.randrange(1, 64)
        faults.append(Fault(kind, target, at, lasts, ambush, count, amount, rng.random() < 0.4))
    return faults


def plot(rng: Random, kind: str, nodes: int, processes: int, ttl: float) -> list[Fault]:
    """Return faults that belong together: stories that chance alone tells too seldom.

    Kinds:
        raise   while max_ttl is raised a node is away; then another forgets, and a process is cut off from one that
                remembers
        keep    a node is promoted between its refusal and the admission that follows
        alone   a node forgets, and for a while somebody reaches only that one
        relay   one node forgets, and another once the first votes again
        heal    a node misses a write; then the others forget, one after the other
        late    a grant's reply comes late; the lease is handed on, and extended where that grant was, but not elsewhere
        paused  a process stands still between a round and what it does next
        old     two nodes come back with older data, and somebody meets only these
        thin    a node misses a lease; another loses its last write, and a third is cut off while the next is handed on
        lonely  a completion reaches few nodes and its worker dies; one that has it forgets, one is cut off
        again   a node forgets once more while it is repaired
    """
    return PLOTS[kind](rng, rng.sample(range(nodes), 3), processes, ttl)


def _raise(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    lasts = rng.choice((0.3, 1.0, 3.0))
    if rng.random() < 0.6:
        away = Fault("cut", first, _soon(rng), lasts, "refusal", rng.choice((1, 1, 2)), ALL)
    else:
        away = Fault("cut", first, rng.uniform(0.0, 1.5), lasts, amount=ALL)
    cut_off = Fault("cut", third, rng.uniform(0.5, 6.0), rng.uniform(1.0, 2.5) * ttl, amount=ALL & ~2)
    return [away, Fault("crash, data lost", second, rng.uniform(0.5, 6.0), 0.02), cut_off]


def _keep(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, _, third = nodes
    promoted = Fault(
        "failover",
        first,
        rng.choice((0.0, 0.0005, 0.002)),
        rng.choice((0.001, 0.003, 0.01)),
        "refusal",
        rng.choice((1, 1, 2)),
        rng.choice((2, 3, 4)),
    )
    return [Fault("cut", third, 0.0, 1.2, amount=1), promoted]


def _alone(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    when = rng.uniform(1.5, 7.0)
    others = ALL & ~2
    return [
        Fault("cut", third, _soon(rng), 2.0, "admit", 2, 2),
        Fault("crash, data lost", second, when, 0.02),
        Fault("cut", first, when - 0.1, rng.uniform(1.2, 2.5) * ttl, amount=others),
        Fault("cut", third, when - 0.1, rng.uniform(0.2, 1.0) * ttl, amount=others),
    ]


def _relay(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    when = rng.uniform(0.5, 8.0)
    again = when + ttl * 1.02 + rng.uniform(0.1, 3.0)
    cut_off = Fault(
        "cut", third, rng.uniform(0.2, 6.0), rng.uniform(0.8, 2.0) * ttl, amount=1 << rng.randrange(processes)
    )
    return [Fault("crash, data lost", first, when, 0.02), Fault("crash, data lost", second, again, 0.02), cut_off]


def _heal(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    when = rng.uniform(0.5, 4.0)
    return [
        Fault("cut", third, _soon(rng), rng.choice((0.3, 2 * ttl)), "grant", rng.choice((1, 1, 2)), ALL),
        Fault("crash, data lost", first, when, 0.02),
        Fault("crash, data lost", second, when + rng.uniform(0.2, 6.0), 0.02),
    ]


def _late(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, _, third = nodes
    return [
        Fault("cut", first, 0.0, rng.uniform(0.5, 3.0), "grant", rng.choice((1, 1, 2)), 1),
        Fault("cut", third, rng.uniform(0.5, 4.0), rng.uniform(0.3, 1.0) * ttl, amount=ALL & ~1),
    ]


def _paused(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    pauses = [(rng.randrange(processes), rng.choice(("ask", "settle")), rng.randrange(1, 9)) for _ in range(3)]
    return [Fault("pause", process, 0.0, rng.uniform(0.8, 1.3) * ttl, what, count) for process, what, count in pauses]


def _old(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    when = rng.uniform(0.3, 4.0)
    return [
        Fault("failover", first, when, 0.02, amount=rng.choice((1, 2, 4, 8))),
        Fault("failover", second, when + rng.uniform(0.0, 2.0), 0.02, amount=rng.choice((1, 2, 4, 8))),
        Fault("cut", third, when + rng.uniform(2.0, 10.0), 3 * ttl, amount=ALL),
    ]


def _thin(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    count = rng.choice((3, 3, 3, 4))
    return [
        Fault("cut", third, _soon(rng), rng.uniform(0.2, 1.2) * ttl, "grant", 1, ALL),
        Fault("failover", first, rng.choice((0.0, 0.0005)), 0.02, "grant", count, amount=1),
        Fault("cut", second, rng.uniform(0.02, 0.1), 2 * ttl, "grant", count, ALL, of=first),
    ]


def _lonely(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    worker = rng.randrange(processes)
    others = ALL & ~(1 << worker)
    missed = rng.choice(((third,), (third,), (second, third)))
    faults = [Fault("cut", node, 0.0, 3 * ttl, "completing", 1, 1 << worker, of=worker) for node in missed]
    if rng.random() < 0.8:
        faults.append(Fault("kill", worker, rng.uniform(0.6, 1.2), 30.0, "completing", 1))
    if rng.random() < 0.4:
        faults.append(Fault("crash, data lost", first, rng.uniform(0.3, 3.0), 0.02))
    else:
        faults.append(Fault("crash, data lost", first, rng.uniform(0.5, 15.0), 0.02, "completing", 1, of=worker))
    away = rng.choice((second, second, first))
    faults.append(
        Fault(
            "cut",
            away,
            rng.choice((rng.uniform(0.0, 2.0), rng.uniform(1.6, 3.2))) * ttl,
            2 * ttl,
            "completing",
            1,
            others,
            of=worker,
        )
    )
    return faults


def _again(rng: Random, nodes: Sequence[int], processes: int, ttl: float) -> list[Fault]:
    first, second, third = nodes
    worker = rng.randrange(processes)
    return [
        Fault("crash, data lost", first, rng.uniform(0.3, 3.0), 0.02),
        Fault("cut", third, 0.0, 3 * ttl, "completing", 1, 1 << worker, of=worker),
        Fault("kill", worker, rng.uniform(0.6, 1.2), 30.0, "completing", 1),
        Fault(
            "failover", first, _soon(rng), rng.choice((0.001, 0.003)), "copy", rng.choice((1, 2)), rng.choice((1, 2, 3))
        ),
        Fault("cut", second, rng.uniform(1.0, 2.5) * ttl, 2 * ttl, "completing", 1, ALL, of=worker),
    ]


def _soon(rng: Random) -> float:
    return rng.choice((0.0, 0.0005, 0.005, 0.02))


ALL = 63
"""Every process, as bits."""
PLOTS = {
    "raise": _raise,
    "keep": _keep,
    "alone": _alone,
    "relay": _relay,
    "heal": _heal,
    "late": _late,
    "old": _old,
    "paused": _paused,
    "thin": _thin,
    "lonely": _lonely,
    "again": _again,
}


class Saboteur:
    """Carries a plan of faults out, within the limits.

    Args:
        world: Time.
        network: With the nodes.
        processes: Where the process of an index is now.
        faults: The plan.
        limits: What the assumptions allow; a fault that would exceed them is left out.
        restart: Called with a process's index some time after it was killed.
    """

    def __init__(
        self,
        world: Scheduler,
        network: Network,
        processes: list[Process],
        faults: Sequence[Fault],
        limits: Limits,
        restart: Callable[[int], None],
    ) -> None:
        self._world = world
        self._network = network
        self._processes = processes
        self._limits = limits
        self._restart = restart
        self.is_over = False
        self._counts: Counter[tuple[str, int]] = Counter()
        self._ambushes: defaultdict[tuple[str, int, int], list[Fault]] = defaultdict(list)
        for fault in faults:
            if fault.ambush:
                self._ambushes[fault.waits_for].append(fault)
            else:
                world.at(fault.at, self._strike, fault)

    def happened(self, what: str, index: int) -> None:
        """Be told of a moment that an ambush may wait for."""
        self._counts[what, index] += 1
        for fault in self._ambushes.pop((what, index, self._counts[what, index]), ()):
            if fault.at:
                self._world.at(self._world.now + fault.at, self._strike, fault)
            else:
                self._strike(fault)

    def stop(self) -> None:
        """Let nothing more go wrong, and mend what is mended by itself: machines start, partitions end."""
        self.is_over = True
        self._network.cut_until.clear()
        for host in self._network.hosts:
            host.frozen_until = -1.0
            if host.node.is_replica:
                self._promote(host, host.node.births, 0)
            if not host.is_up:
                self._start(host)
        for process in self._processes:
            process.paused_until = self._world.now

    def _strike(self, fault: Fault) -> None:
        if self.is_over:
            return
        world = self._world
        if fault.kind in PROCESS_KINDS:
            self._strike_process(self._processes[fault.target], fault)
            return
        host = self._network.hosts[fault.target]
        if not host.is_up or host.node.is_replica:
            return
        forgets = fault.kind in FORGETTING or (self._limits.needs_rights and fault.kind.startswith("crash"))
        if forgets and not self._may_forget(host, fault):
            return
        world.seen[f"fault: {fault.kind}"] += 1
        world.tell(f"n{host.index}", f"*** {fault.kind} for {fault.lasts:.3f} s")
        carry_out = {
            "flush": self._flush,
            "failover": self._failover,
            "freeze": self._freeze,
            "cut": self._cut,
            "script flush": self._flush_scripts,
            "clock step": self._step,
        }
        carry_out.get(fault.kind, self._crash)(host, fault)

    def _strike_process(self, process: Process, fault: Fault) -> None:
        world = self._world
        if not process.is_alive:
            return
        world.seen[f"fault: {fault.kind}"] += 1
        world.tell(process.name, f"*** {fault.kind} for {fault.lasts:.3f} s")
        if fault.kind == "pause":
            process.pause(fault.lasts)
        elif fault.kind == "kill":
            process.kill()
            world.history.add("killed", world.now, process.name)
            world.at(world.now + fault.lasts, self._restart, fault.target)
        else:
            for task in list(process.tasks):
                if not task.is_over:
                    process.run(task.interrupt)
                    break

    # -- forgetting, as far as the assumptions allow it

    def _may_forget(self, host: VirtualHost, fault: Fault) -> bool:
        others = [other for other in self._network.hosts if other is not host]
        if sum(map(self._remembers, others)) < self._limits.remembering:
            return False
        # All nodes new at once, one of them without having been started anew: that is taken for the first use.
        stays = fault.kind in ("flush", "failover")
        if not any(self._has_marker(other) for other in others):
            return not stays and not any(other.forgot_without_restart for other in others)
        return True

    @staticmethod
    def _has_marker(host: VirtualHost) -> bool:
        return any(key.endswith(MARKER_KIND) for key in host.node.data)

    def _remembers(self, host: VirtualHost) -> bool:
        """Whether the node's marker names its identity, and its wait is over, and it has the rights that are needed.

        A node that is down loses its rights as soon as it starts.
        """
        node = host.node
        if self._limits.needs_rights and not host.is_up:
            return False
        for key, (value, _) in node.data.items():
            if key.endswith(MARKER_KIND):
                identity, since, announced, _, rights, *_ = value.split()
                waited = node.now_ms() - int(since) > int(announced) * 1.02 + 10
                is_known = identity == node.identity and waited and not node.is_replica
                return is_known and (rights == "records" or not self._limits.needs_rights)
        return False

    # -- nodes

    def _flush(self, host: VirtualHost, _fault: Fault) -> None:
        host.node.flush()
        host.forgot_without_restart = True
        self._world.history.add("forgot", self._world.now, f"n{host.index}")

    def _flush_scripts(self, host: VirtualHost, _fault: Fault) -> None:
        host.node.scripts.clear()

    def _freeze(self, host: VirtualHost, fault: Fault) -> None:
        host.frozen_until = self._world.now + fault.lasts

    def _cut(self, host: VirtualHost, fault: Fault) -> None:
        for index, process in enumerate(self._processes):
            if fault.amount >> index & 1:
                self._network.cut_until[process.name, host.index] = self._world.now + fault.lasts

    def _step(self, host: VirtualHost, fault: Fault) -> None:
        """Step a clock, which breaks an assumption: for mutants only."""
        host.node.offset += fault.lasts

    def _crash(self, host: VirtualHost, fault: Fault) -> None:
        host.is_up = False
        host.is_silent = fault.is_silent
        if not fault.is_silent:
            for sock in list(host.sockets):
                sock.reset_later()
        host.sockets.clear()
        if "partly" in fault.kind:
            host.node.lose_last(fault.amount)
        elif "lost" in fault.kind:
            host.node.flush()
        if "kept" not in fault.kind:
            how = "partly" if "partly" in fault.kind else ""
            self._world.history.add("forgot", self._world.now, f"n{host.index}", more=how)
        self._world.at(self._world.now + fault.lasts, self._start, host)

    def _start(self, host: VirtualHost) -> None:
        if not host.is_up:
            host.is_up = True
            host.forgot_without_restart = False
            host.node.start_anew()
            self._world.tell(f"n{host.index}", "*** started anew")

    def _failover(self, host: VirtualHost, fault: Fault) -> None:
        """Demote a node, and promote it back with what a lagging replica had; connections stay."""
        node = host.node
        node.is_replica = True
        node.new_identity()
        lost = node.lose_last(fault.amount)
        host.forgot_without_restart = host.forgot_without_restart or not self._has_marker(host)
        if lost:
            self._world.history.add("forgot", self._world.now, f"n{host.index}", more="partly")
        self._world.at(self._world.now + fault.lasts, self._promote, host, node.births, 0)

    def _promote(self, host: VirtualHost, births: int, _unused: int) -> None:
        node = host.node
        if node.is_replica and node.births == births:
            node.is_replica = False
            node.new_identity()
            self._world.tell(f"n{host.index}", "*** promoted")


def reply_kind(reply: Any) -> str:
    """Return what an ambush calls a script's reply."""
    if not isinstance(reply, list) or not reply:
        return ""
    return {1: "grant", -1: "refusal"}.get(reply[0], "")
