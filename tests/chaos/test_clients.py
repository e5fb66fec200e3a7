"""Clients are stopped past the end of their leases, also between a check and a write, and killed."""

from __future__ import annotations

import signal
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from redlock import clock
from redlock.local import LocalNodes
from tests.chaos.fleet import QUIET, RESOURCES, Fleet, Hit, Outcome, times
from tests.chaos.history import late_writes
from tests.tools.peek import happens

pytestmark = pytest.mark.chaos


def _holding(fleet: Fleet, lately: float = 0.5) -> str:
    """Wait until some client holds a lease that is long enough, and return it."""
    found: list[str] = []

    def look() -> bool:
        last = {event["client"]: event for event in fleet.history()}
        alive = fleet.alive()
        found[:] = [name for name, event in last.items() if name in alive and event["op"] in ("acquired", "extended")]
        return bool(found)

    assert happens(look, within=5.0 + lately)
    return fleet.random.choice(found)


def _wakes(fleet: Fleet, victim: str) -> Hit:
    """Let a client go on that has stopped itself."""
    return Hit(lambda: None, lambda: fleet.signal(victim, signal.SIGCONT), {"victim": victim})


def _assert_fences_kept_the_order(outcome: Outcome) -> None:
    fenced = [event for event in outcome.events if event["op"] == "fenced" and event["accepted"]]
    assert fenced
    for resource in RESOURCES:
        tokens = [int(event["fence"]) for event in fenced if event["resource"] == resource]
        assert tokens == sorted(tokens)


def test_stopped_clients(nodes: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """SIGSTOP past the end of the lease: whoever wakes knows it; only a write between check and lock can be late."""
    with Fleet(tmp_path, nodes.urls, long=0.5) as fleet:
        for _ in times(13):
            victim = _holding(fleet)
            stop = lambda name=victim: fleet.signal(name, signal.SIGSTOP)  # noqa: E731
            wake = lambda name=victim: fleet.signal(name, signal.SIGCONT)  # noqa: E731
            fleet.fault("client stop", 1.5 * fleet.ttl, Hit(stop, wake, {"victim": victim}))
            sleep(QUIET)
        outcome = judge(fleet, fleet.names, noticed=0.3)
    _assert_fences_kept_the_order(outcome)


def test_clients_that_stop_between_check_and_write(nodes: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """No lock can prevent the write that follows; a store that looks at the fencing token refuses it."""
    with Fleet(tmp_path, nodes.urls, long=0.0) as fleet:
        for _ in times(5):
            victim, asked = fleet.random.choice(fleet.alive()), clock()
            fleet.signal(victim, signal.SIGUSR1)
            fleet.next_event("stopping", victim, asked)
            fleet.fault("client stop before a write", 1.5 * fleet.ttl, _wakes(fleet, victim))
            fleet.next_event("fenced", victim, asked)
        outcome = judge(fleet, fleet.names)
    late = late_writes(outcome.events)
    assert len(late) >= len(times(5)), "the checkers are blind: a write after the end of its lease was not found"
    refused = {event["token"] for event in outcome.events if event["op"] == "fenced" and not event["accepted"]}
    assert refused & {event["token"] for event in late}, "no late write met a store that somebody had written to"
    _assert_fences_kept_the_order(outcome)


def test_killed_clients(nodes: LocalNodes, tmp_path: Path, judge: Any) -> None:
    """SIGKILL while holding: the others wait for the end of the lease, and then go on."""
    with Fleet(tmp_path, nodes.urls, long=0.5) as fleet:
        for _ in times(13):
            victim = _holding(fleet)
            fleet.fault("client kill", 0.0, Hit(fleet.processes[victim].kill, fleet.start_client, {"victim": victim}))
            sleep(2 * QUIET)
        kill = max(event["t"] for event in fleet._faults)
        assert happens(lambda: _goes_on(fleet, kill), within=5.0), "nobody got a lock after the last kill"
        judge(fleet, fleet.names, noticed=0.3)


def _goes_on(fleet: Fleet, since: float) -> bool:
    later = [event for event in fleet.history() if event["op"] == "acquired" and event["invoked"] > since]
    return {event["resource"] for event in later} == set(RESOURCES)
