"""Thousands of seeded schedules of the shipping claim and repair plans: every key is run and recorded once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import claim_world
from tests.simulation.campaign import base_seed, campaign, is_full
from tests.simulation.faults import KINDS

COUNTS = (500, 10_000)
"""Schedules in a quick run, and in a full one."""
CORPUS = (175, 950, 2480, 2640, 2680)
"""Seeds of schedules that once broke something; here or in the simulation itself."""
SEEN = [
    *(f"fault: {kind}" for kind in KINDS),
    "refusal: new",
    "refusal: restarted",
    "refusal: waiting",
    "error reply: NOSCRIPT",
    "slow bytes",
    "held back by a partition",
    "waited for a frozen node",
    "waited for a paused process",
    "lost request",
    "lost reply",
    "late request",
    "repeated request",
    "swept",
    "claimed",
    "extended",
    "lost",
    "abandoned",
    "recorded",
    "skipped",
    "unrecorded",
    "contested",
    "double run",
    "acknowledgement lost",
    "Busy",
    "Unavailable",
    "met a forgetful node",
    "repaired",
    "NodeRepaired",
    "forgotten",
    "copy done",
    "entitle done",
    "undo done",
]
"""What has to have happened in a campaign; what is seldom, in a full one."""
SELDOM = {"double run", "error reply: NOSCRIPT", "contested", "waited for a frozen node"}


def test_what_once_broke_stays_mended(judge: Any) -> None:
    """Schedules that found something are played first."""
    judge(claim_world, campaign(claim_world, CORPUS))


@pytest.mark.timeout(900)
def test_no_promise_of_the_claims_breaks(judge: Any, record_property: Any) -> None:
    """One run at a time, none after a completion, one result, each further run explained; and liveness."""
    first = base_seed()
    print(f"SIMULATION_SEED={first}")
    record_property("seed", first)
    report = campaign(claim_world, range(first, first + COUNTS[is_full()]))
    judge(claim_world, report)
    unseen = [what for what in SEEN if not report.seen[what] and (is_full() or what not in SELDOM)]
    assert not unseen, f"never happened: {unseen}"


def test_five_nodes_keep_the_promises_too(judge: Any, record_property: Any) -> None:
    """A twentieth as many schedules with five nodes."""
    first = base_seed()
    print(f"SIMULATION_SEED={first}")
    record_property("seed", first)
    judge(claim_world, campaign(claim_world, range(first, first + COUNTS[is_full()] // 20), nodes=5), nodes=5)


def test_a_seed_means_one_schedule() -> None:
    """The same seed gives the same events at the same times."""
    start = base_seed()
    seeds = range(start, start + 12)
    assert [claim_world.play(seed).digest for seed in seeds] == [claim_world.play(seed).digest for seed in seeds]


def test_faults_that_are_given_are_played_in_the_same_schedule() -> None:
    """A plan that is written down, as when it is shortened or replayed, goes on in the plot that it was drawn for."""
    outcomes = [claim_world.play(seed) for seed in range(60)]
    again = [claim_world.play(outcome.seed, faults=outcome.faults) for outcome in outcomes]
    assert [outcome.digest for outcome in again] == [outcome.digest for outcome in outcomes]
