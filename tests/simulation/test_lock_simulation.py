"""Thousands of seeded schedules of the shipping lock plans: no promise breaks while the assumptions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation import lock_world
from tests.simulation.campaign import base_seed, campaign, is_full
from tests.simulation.faults import KINDS
from tests.simulation.replay import main, timeline
from tests.tools.peek import ROOT

COUNTS = {3: (500, 10_000), 5: (250, 5_000)}
"""Schedules by number of nodes: in a quick run, and in a full one."""
CORPUS = [
    (3, None, (141, 188, 346, 950, 1243, 1420, 1587, 2420, 2556, 3035, 3349, 5014)),
    (3, "mixed", (0, 313, 960, 4796)),
    (5, None, (0, 7, 100)),
]
"""Nodes, profile and seeds of schedules that once broke something; here or in the simulation itself."""
SEEN = [
    *(f"fault: {kind}" for kind in KINDS),
    "refusal: new",
    "refusal: restarted",
    "refusal: waiting",
    "refusal: max_ttl",
    "error reply: READONLY",
    "error reply: NOSCRIPT",
    "refused a replica",
    "slow bytes",
    "held back by a partition",
    "waited for a frozen node",
    "waited for a paused process",
    "interrupted",
    "lost request",
    "lost reply",
    "late request",
    "repeated request",
    "reply that nobody waits for",
    "swept",
    "granted",
    "extended",
    "attached",
    "lost",
    "LockHeldError",
    "QuorumUnreachableError",
    "SettingsError",
    "fence done",
    "heal done",
    "admit done",
    "release done",
    "counter done",
]
"""What has to have happened in every campaign: a fault that never strikes proves nothing."""


@pytest.mark.parametrize(("nodes", "profile", "seeds"), CORPUS)
def test_what_once_broke_stays_mended(nodes: int, profile: str | None, seeds: tuple[int, ...], judge: Any) -> None:
    """Schedules that found something are played first."""
    judge(lock_world, campaign(lock_world, seeds, nodes=nodes, profile=profile), nodes=nodes, profile=profile)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", COUNTS)
def test_no_promise_of_the_locks_breaks(nodes: int, judge: Any, record_property: Any) -> None:
    """Exclusion, continuity, validity, ownership, healing, votes, fencing tokens; and liveness where faults stop."""
    first = base_seed()
    print(f"SIMULATION_SEED={first}")
    record_property("seed", first)
    report = campaign(lock_world, range(first, first + COUNTS[nodes][is_full()]), nodes=nodes)
    judge(lock_world, report, nodes=nodes)
    unseen = [what for what in SEEN if not report.seen[what]]
    assert not unseen, f"never happened: {unseen}"


def test_a_seed_means_one_schedule() -> None:
    """The same seed gives the same events at the same times, whatever was played before."""
    start = base_seed()
    seeds = range(start, start + 12)
    first = [lock_world.play(seed).digest for seed in seeds]
    assert [lock_world.play(seed).digest for seed in reversed(seeds)] == first[::-1]
    assert len(set(first)) == len(first)


def test_a_seed_means_the_same_schedule_in_every_process() -> None:
    """Else the command that a failure prints would show something else: nothing depends on how strings are hashed."""
    command = [sys.executable, "-m", "tests.simulation.replay", "--seed", "7"]
    drawn = [
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, check=True, timeout=60
        ).stdout
        for salt in ("1", "2")
    ]
    assert drawn[0] == drawn[1]
    assert b"acquire" in drawn[0]


def test_a_schedule_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """The replay draws every event, and tells by its exit status whether a promise broke."""
    outcome = lock_world.play(3, traces=True)
    assert outcome.digest == lock_world.play(3).digest
    drawn = timeline(outcome)
    assert "acquire" in drawn
    assert main(["--seed", "3", "--faults", "none"]) == 0
    assert "violations:\n  none" in capsys.readouterr().out


def test_faults_that_are_given_are_played_in_the_same_schedule() -> None:
    """A plan that is written down, as when it is shortened or replayed, goes on in the plot that it was drawn for."""
    outcomes = [lock_world.play(seed) for seed in range(60)]
    again = [lock_world.play(outcome.seed, faults=outcome.faults) for outcome in outcomes]
    assert [outcome.digest for outcome in again] == [outcome.digest for outcome in outcomes]
