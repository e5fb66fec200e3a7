"""Real nodes, four client processes, and faults: no two holders, fencing tokens in order, no update lost.

Every fault has to be noticed by a client too, or it was none. Two groups of tests go beyond what is promised, on
purpose: there the checkers must find the violation.
"""

from __future__ import annotations

import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redlock.local import LocalNode, LocalNodes
from tests.chaos.fleet import RESOURCES, SCALE, Fleet, Outcome
from tests.tools.fault_proxy import FaultProxy
from tests.tools.peek import ask, happens
from tests.tools.wallskew import WallSkew, compiled_shim

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60 + 120 * SCALE)]

GUARD_WAIT = 1.3
"""Seconds after which a node that forgot votes again, with the fleet's max_ttl."""
QUIET = 0.1
"""Seconds between two faults."""


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Callable[..., Outcome]:
    """Return a function that ends a fleet, reports what came of it, and asserts that every fault was noticed."""

    def end(fleet: Fleet, names: list[str], *, noticed: float = 1.0, expected: bool = False) -> Outcome:
        outcome = fleet.outcome(len(names), names)
        violations = sum(outcome.violations.values())
        record_property("leases", len(outcome.holds))
        record_property("violations", 0 if expected else violations)
        record_property("seed", fleet.seed)
        for kind, count in outcome.injected.items():
            record_property(f"injected {kind}", count)
            record_property(f"observed {kind}", outcome.observed[kind])
        print(outcome)
        assert fleet.logs() == ""
        assert outcome.holds
        assert happens(lambda: not _left(names), within=2 * fleet.ttl + 1.0), f"nobody owns {_left(names)}"
        for kind, count in outcome.injected.items():
            assert outcome.observed[kind] >= max(1, count * noticed), outcome
        assert expected or not violations, outcome
        record_property("seen" if expected else "held", int(bool(violations) or not expected))
        return outcome

    return end


def names_of(urls: list[str]) -> list[str]:
    """Return the nodes' names as clients report them."""
    return [url.removeprefix("redis://") + "/0" for url in urls]


def _left(names: list[str]) -> list[str]:
    """Return lock keys, and keys without an end but for the marker; after the last lease there are none."""
    keys = [(name, key) for name in names for key in ask(f"redis://{name}", "KEYS", "*")]
    return [
        key
        for name, key in keys
        if key.startswith("redlock:lock:") or (key != "redlock:marker" and ask(f"redis://{name}", "PTTL", key) == -1)
    ]


def times(count: int) -> range:
    """Return as many rounds, scaled."""
    return range(max(1, round(count * SCALE)))


# -- nodes that are killed and come back


def _cut(node: LocalNode, share: float) -> None:
    """Lose the end of a node's append-only file, as a power cut does."""
    for path in node.directory.glob("appendonlydir/*.incr.aof"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(int(size * share))
        assert path.stat().st_size < size or not size


def _restart(fleet: Fleet, nodes: LocalNodes, index: int, *, cut: bool = False) -> None:
    node = nodes[index]
    pid = node.pid

    def back() -> None:
        if cut:
            _cut(node, fleet.random.random())
        node.restart()
        assert node.pid != pid

    fleet.fault("restart", node.kill, back, fleet.random.uniform(0.0, 0.2), node=index)


@pytest.mark.parametrize("mode", ["none", "everysec", "always", "truncated"])
def test_restarts(local_nodes: Any, tmp_path: Path, judge: Any, mode: str) -> None:
    """One node at a time, whatever it remembers."""
    nodes = local_nodes(3, persistence="everysec" if mode == "truncated" else mode)
    with Fleet(tmp_path, nodes.urls) as fleet:
        for number in times(12):
            _restart(fleet, nodes, number % 3, cut=mode == "truncated")
            time.sleep(GUARD_WAIT)
        judge(fleet, names_of(nodes.urls))


@pytest.mark.parametrize("guarded", [True, False], ids=["guard on", "guard off, must be seen"])
def test_two_restarts_within_a_lease(nodes3: LocalNodes, tmp_path: Path, judge: Any, guarded: bool) -> None:  # noqa: FBT001
    """Nodes that forgot would be a majority for somebody else; with the guard they wait, and nobody gets in."""
    with Fleet(tmp_path, nodes3.urls, ttl=1.0, long=0.9, restart_guard=guarded) as fleet:
        for number in times(5):
            time.sleep(0.3)
            for offset in range(2):
                node = nodes3[(number + offset) % 3]
                fleet.fault("restart", node.kill, node.restart, 0.0, node=(number + offset) % 3)
            time.sleep(GUARD_WAIT)
        outcome = judge(fleet, names_of(nodes3.urls), expected=not guarded)
    if not guarded:
        assert outcome.violations["overlaps"], "the checkers are blind: two majorities were not found"


# -- nodes that hang


def test_pauses(nodes3: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """From a hundredth of a second to twice the ttl; the shorter ones nobody need notice."""
    with Fleet(tmp_path, nodes3.urls) as fleet:
        for _ in times(24):
            index = fleet.random.randrange(3)
            seconds = fleet.random.choice([0.01, 0.05, 0.2, fleet.ttl, 2 * fleet.ttl])
            fleet.fault("pause", nodes3[index].pause, nodes3[index].resume, seconds, node=index)
            time.sleep(QUIET)
        judge(fleet, names_of(nodes3.urls), noticed=0.3)


# -- networks

MODES: dict[str, tuple[Any, ...]] = {
    "refuse": (),
    "reset": (),
    "hang": (),
    "drop_requests": (),
    "drop_replies": (),
    "delay": (0.2, 0.2),
    "inject": (b"+OK\r\n",),
    "garbage": (),
    "cut": (7,),
}


def test_networks(nodes3: LocalNodes, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """A proxy in front of each node fails in nine ways, one node at a time."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes3]
        urls = [proxy.url for proxy in proxies]
        fleet = stack.enter_context(Fleet(tmp_path, urls, looks_at=nodes3.urls))
        for number in times(9 * 7):
            mode = list(MODES)[number % 9]
            index = fleet.random.randrange(3)
            proxy = proxies[index]
            seconds = fleet.random.uniform(0.15, 0.35)
            fleet.fault(
                f"proxy {mode}",
                lambda proxy=proxy, mode=mode: proxy.set(mode, *MODES[mode]),
                lambda proxy=proxy: proxy.set("pass", kill_connections=True),
                seconds,
                node=index,
            )
            time.sleep(QUIET)
        judge(fleet, names_of(urls), noticed=0.3)
        for mode in MODES:
            count = sum(proxy.observed[mode] for proxy in proxies)
            record_property(f"met {mode}", count)
            assert count, f"no byte and no connection met {mode}"


# -- clocks


class Skewed:
    """Three nodes with a wall clock each."""

    def __init__(self, folder: Path, binary: str, stack: ExitStack) -> None:
        library = compiled_shim(folder)
        self.skews = [WallSkew(library, folder) for _ in range(3)]
        self.nodes = []
        for number, skew in enumerate(self.skews):
            stack.callback(skew.close)
            wrapper = folder / f"server{number}"
            settings = " ".join(f"{name}='{skew.env()[name]}'" for name in ("LD_PRELOAD", "WALLSKEW_FILE"))
            wrapper.write_text(f'#!/bin/sh\n{settings} exec "{binary}" "$@"\n')
            wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
            self.nodes += stack.enter_context(LocalNodes(1, binary=str(wrapper)))

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [node.url for node in self.nodes]

    def offset(self, index: int) -> float:
        """Return how far a node's clock is ahead of ours."""
        seconds, microseconds = ask(self.urls[index], "TIME")
        return float(int(seconds) + int(microseconds) / 1e6 - time.time())


@pytest.fixture
def skewed(default_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skewed]:
    """Three nodes, each on a clock of its own."""
    with ExitStack() as stack:
        yield Skewed(tmp_path_factory.mktemp("clocks"), default_server, stack)


def test_clock_rates_within_drift(skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """Each clock runs up to 0.4 % fast or slow, which the allowance for drift covers."""
    seen = 0
    with Fleet(tmp_path, skewed.urls, ttl=1.0, long=0.5) as fleet:
        for _ in times(10):
            for skew in skewed.skews:
                skew.rate(fleet.random.choice([-4_000, 4_000]))
            before = [skewed.offset(index) for index in range(3)]
            time.sleep(0.7)
            seen += all(abs(skewed.offset(index) - before[index]) > 0.0005 for index in range(3))
        record_property("injected clock rate", len(times(10)))
        record_property("observed clock rate", seen)
        assert seen
        judge(fleet, names_of(skewed.urls))


def test_clock_steps_of_one_node(skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """A step back on one node of three, by up to twice the ttl: it only stays away or keeps keys for longer."""
    seen = 0
    with Fleet(tmp_path, skewed.urls, ttl=0.5) as fleet:
        for number in times(9):
            index = number % 3
            step = (0.5, 1.0, 2.0)[number // 3 % 3] * fleet.ttl
            before = skewed.offset(index)
            skewed.skews[index].jump(-step)
            seen += happens(lambda: skewed.offset(index) < before - step / 2)  # noqa: B023 - called at once
            time.sleep(0.5)
        record_property("injected clock step back", len(times(9)))
        record_property("observed clock step back", seen)
        assert seen == len(times(9))
        judge(fleet, names_of(skewed.urls))


LIMITS: dict[str, Callable[[WallSkew, float], None]] = {
    "step": lambda skew, ttl: skew.jump(2 * ttl),
    "rate of 10 %": lambda skew, _ttl: skew.rate(100_000),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_clocks_beyond_what_is_promised_must_be_seen(
    skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any, limit: str
) -> None:
    """Two nodes that let leases end early give the lock to a second holder: the checkers have to find it."""
    with Fleet(tmp_path, skewed.urls, ttl=1.0, long=0.95) as fleet:
        for _ in times(6):
            for skew in skewed.skews[:2]:
                LIMITS[limit](skew, fleet.ttl)
            time.sleep(0.8)
        outcome = judge(fleet, names_of(skewed.urls), expected=True)
    record_property(f"injected clock {limit}", len(times(6)))
    record_property(f"observed clock {limit}", outcome.violations["overlaps"])
    assert outcome.violations["overlaps"], "the checkers are blind: clocks beyond the promise were not noticed"


# -- clients


def _holding(fleet: Fleet, lately: float = 0.5) -> str:
    """Wait until some client holds a lease that is long enough, and return it."""
    found: list[str] = []

    def look() -> bool:
        last = {event["client"]: event for event in fleet.history()}
        alive = {name for name, process in fleet.processes.items() if process.poll() is None}
        found[:] = [name for name, event in last.items() if name in alive and event["op"] in ("acquired", "extended")]
        return bool(found)

    assert happens(look, within=5.0 + lately)
    return fleet.random.choice(found)


def test_stopped_clients(nodes3: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """SIGSTOP past the end of the lease: whoever wakes knows it; only a write between check and lock can be late."""
    with Fleet(tmp_path, nodes3.urls, long=0.5) as fleet:
        for _ in times(14):
            victim = _holding(fleet)
            process = fleet.processes[victim]
            fleet.fault(
                "client stop",
                lambda process=process: process.send_signal(signal.SIGSTOP),
                lambda process=process: process.send_signal(signal.SIGCONT),
                1.5 * fleet.ttl,
                victim=victim,
            )
            time.sleep(QUIET)
        outcome = judge(fleet, names_of(nodes3.urls), noticed=0.3)
    fenced = [event for event in outcome.events if event["op"] == "fenced" and event["accepted"]]
    for resource in RESOURCES:
        tokens = [int(event["fence"]) for event in fenced if event["resource"] == resource]
        assert tokens
        assert tokens == sorted(tokens)


def test_killed_clients(nodes3: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """SIGKILL while holding: the others wait for the end of the lease, and then go on."""
    with Fleet(tmp_path, nodes3.urls, long=0.5) as fleet:
        for _ in times(14):
            victim = _holding(fleet)
            fleet.fault("client kill", fleet.processes[victim].kill, fleet.start_client, 0.0, victim=victim)
            time.sleep(2 * QUIET)
        kill = max(event["t"] for event in fleet._faults)
        assert happens(lambda: _goes_on(fleet, kill), within=5.0), "nobody got a lock after the last kill"
        judge(fleet, names_of(nodes3.urls), noticed=0.3)


def _goes_on(fleet: Fleet, since: float) -> bool:
    later = [event for event in fleet.history() if event["op"] == "acquired" and event["invoked"] > since]
    return {event["resource"] for event in later} == set(RESOURCES)


def test_files_are_where_they_are_cut(local_nodes: Any) -> None:
    """What `truncated` relies on: the server keeps an append-only file there, and starts with a part of it."""
    nodes = local_nodes(1, persistence="everysec")
    for number in range(100):
        ask(nodes[0].url, "SET", f"k{number}", "x")
    nodes[0].kill()
    assert shutil.which(nodes._command[0])
    _cut(nodes[0], 0.5)
    nodes[0].restart()
    assert 0 < ask(nodes[0].url, "DBSIZE") < 100
