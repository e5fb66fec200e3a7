"""Nodes are killed, come back with whatever they remember, and hang; a minority at once.

One group of tests goes beyond what is promised, on purpose: there the checkers must find the violation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from redlock.local import LocalNode, LocalNodes
from tests.chaos.fleet import QUIET, Fleet, Hit, times
from tests.tools.peek import ask

pytestmark = pytest.mark.chaos


def _cut(node: LocalNode, share: float) -> None:
    """Lose the end of a node's append-only file, as a power cut does."""
    for path in node.directory.glob("appendonlydir/*.incr.aof"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(int(size * share))
        assert path.stat().st_size < size or not size


def _restart(fleet: Fleet, nodes: LocalNodes, index: int, *, cut: bool = False) -> Hit:
    node = nodes[index]
    pid = node.pid

    def back() -> None:
        if cut:
            _cut(node, fleet.random.random())
        node.restart()
        assert node.pid != pid

    return Hit(node.kill, back, {"node": index})


@pytest.mark.parametrize("mode", ["none", "everysec", "always", "truncated"])
def test_restarts(start_nodes: Any, tmp_path: Path, judge: Any, mode: str) -> None:
    """A minority at a time, whatever it remembers."""
    nodes = start_nodes(persistence="everysec" if mode == "truncated" else mode)
    minority = (len(nodes) - 1) // 2
    with Fleet(tmp_path, nodes.urls, max_ttl=0.6) as fleet:
        for number in times(9):
            hit = [(number * minority + offset) % len(nodes) for offset in range(minority)]
            restarts = [_restart(fleet, nodes, index, cut=mode == "truncated") for index in hit]
            fleet.fault(f"restart, {mode}", fleet.random.uniform(0.0, 0.2), *restarts)
            sleep(fleet.guard_wait)
        judge(fleet, fleet.names)


@pytest.mark.parametrize("guarded", [True, False], ids=["guard on", "guard off, must be seen"])
def test_restarts_of_a_majority_within_a_lease(nodes: LocalNodes, tmp_path: Path, judge: Any, guarded: bool) -> None:  # noqa: FBT001
    """Nodes that forgot would be a majority for somebody else; with the guard they wait, and nobody gets in."""
    majority = len(nodes) // 2 + 1
    with Fleet(tmp_path, nodes.urls, ttl=1.0, long=0.9, restart_guard=guarded) as fleet:
        for number in times(3) if guarded else range(4):  # what must be seen needs its time
            sleep(0.3)
            for offset in range(majority):
                restart = _restart(fleet, nodes, (number + offset) % len(nodes))
                fleet.fault("restart within a lease", 0.0, restart)
            sleep(fleet.guard_wait)
        outcome = judge(fleet, fleet.names, expected=not guarded)
    if not guarded:
        assert outcome.violations["overlaps"], "the checkers are blind: two majorities were not found"


def test_pauses(nodes: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """From a hundredth of a second to twice the ttl; the shorter ones nobody need notice."""
    with Fleet(tmp_path, nodes.urls) as fleet:
        for _ in times(34):
            hit = fleet.random.sample(range(len(nodes)), (len(nodes) - 1) // 2)
            seconds = fleet.random.choice([0.01, 0.05, 0.2, fleet.ttl, 2 * fleet.ttl])
            pauses = [Hit(nodes[index].pause, nodes[index].resume, {"node": index}) for index in hit]
            fleet.fault("pause", seconds, *pauses)
            sleep(QUIET)
        judge(fleet, fleet.names, noticed=0.3)


def test_files_are_where_they_are_cut(local_nodes: Any, each_server: str) -> None:
    """What `truncated` relies on: the server keeps an append-only file there, and starts with a part of it."""
    nodes = local_nodes(1, persistence="everysec", binary=each_server)
    for number in range(100):
        ask(nodes[0].url, "SET", f"k{number}", "x")
    nodes[0].kill()
    assert shutil.which(nodes._command[0])
    _cut(nodes[0], 0.5)
    nodes[0].restart()
    assert 0 < ask(nodes[0].url, "DBSIZE") < 100
