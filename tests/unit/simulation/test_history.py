"""The checkers on histories by hand: the good ones pass, and each bad one is told by the rule that it breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.history import (
    CLAIM_CHECKS,
    LIVENESS_CHECKS,
    LOCK_CHECKS,
    Entry,
    violations,
)


def granted(time: float, who: str, token: str, until: float, **more: Any) -> Entry:
    return Entry("granted", time, who, "x", token, until, **more)


def happened(kind: str, time: float, who: str, token: str = "", until: float = 0.0, more: Any = None) -> Entry:
    return Entry(kind, time, who, "x", token, until, more)


def written(time: float, script: str, token: str, before: Any, after: Any, until: float = 0.0) -> Entry:
    return Entry("write", time, "n0", "n:lock:x", token, until, (script, before, after))


def claimed(time: float, who: str, token: str, until: float, asked: float) -> Entry:
    more = (100.0, 100.1, 109.8, 10.0, 0.01, {0, 1}, 3, asked)
    return Entry("claimed", time, who, "k 0", token, until, more)


def about(kind: str, time: float, who: str = "", token: str = "", more: Any = None, until: float = 0.0) -> Entry:
    return Entry(kind, time, who, "k 0", token, until, more)


GOOD_LOCKS = {
    "one after the other": [granted(1, "a", "t1", 5), happened("released", 3, "a", "t1"), granted(3.5, "b", "t2", 9)],
    "after the validity": [granted(1, "a", "t1", 5), granted(5.1, "b", "t2", 9), happened("released", 8, "a", "t1")],
    "the same token elsewhere": [
        granted(1, "a", "t1", 5),
        happened("stopped", 4, "a", "t1"),
        granted(4.2, "b", "t1", 9),
    ],
    "another resource": [granted(1, "a", "t1", 5), Entry("granted", 2, "b", "y", "t2", 6)],
    "validity as it should be": [granted(1, "a", "t1", 5, more=(100.0, 100.2, 109.898, 10.0, 0.01, {0, 1}, 3))],
    "own key released": [written(1, "release", "t1", ("t1", 5), None)],
    "extension lengthens": [
        granted(1, "a", "t1", 5),
        written(2, "extend", "t1", ("t1", 5), ("t1", 9)),
        happened("extended", 2, "a", "t1", 8),
    ],
    "healed until its end": [
        granted(1, "a", "t1", 5),
        written(2, "heal", "t1", None, ("t1", 5000), until=8),
        happened("extended", 2.1, "a", "t1", 8),
    ],
    "fencing tokens grow": [
        happened("fenced", 1, "a", "t1", more=(0.5, 7)),
        happened("fenced", 3, "b", "t2", more=(2.0, 8)),
        happened("fenced", 3.1, "c", "t1", more=(2.5, 7)),
    ],
}
BAD_LOCKS = {
    "two holders": ("S1", [granted(1, "a", "t1", 5), granted(4, "b", "t2", 9)]),
    "two holders by extension": (
        "S1",
        [granted(1, "a", "t1", 5), happened("extended", 4, "a", "t1", 12), granted(6, "b", "t2", 9)],
    ),
    "a lease that came back": (
        "S2",
        [
            granted(1, "a", "t1", 3),
            granted(4, "b", "t2", 9),
            happened("released", 5, "b", "t2"),
            granted(6, "c", "t1", 9),
        ],
    ),
    "longer than the ttl allows": (
        "S3",
        [granted(1, "a", "t1", 5, more=(100.0, 100.2, 109.95, 10.0, 0.01, {0, 1}, 3))],
    ),
    "granted after its validity": ("S3", [granted(1, "a", "t1", 5, more=(100.0, 110.0, 109.8, 10.0, 0.01, {0, 1}, 3))]),
    "another's key released": ("S4", [written(1, "release", "t1", ("t2", 5), None)]),
    "another's key taken": ("S4", [written(1, "acquire", "t1", ("t2", 5), ("t1", 9))]),
    "shortened on a node": ("S5", [written(1, "extend", "t1", ("t1", 9), ("t1", 5))]),
    "shortened for the holder": ("S5", [granted(1, "a", "t1", 5), happened("extended", 2, "a", "t1", 4)]),
    "healed for too long": ("S7", [granted(1, "a", "t1", 5), written(2, "heal", "t1", None, ("t1", 9000), until=9)]),
    "granted by one of three": ("S6", [granted(1, "a", "t1", 5, more=(100.0, 100.2, 109.8, 10.0, 0.01, {0}, 3))]),
    "a late vote": ("S6", [Entry("late_vote", 1, "n0")]),
    "a fencing token twice": (
        "F1",
        [happened("fenced", 1, "a", "t1", more=(0.5, 7)), happened("fenced", 3, "b", "t2", more=(0.6, 7))],
    ),
    "a fencing token that goes back": (
        "F2",
        [happened("fenced", 1, "a", "t1", more=(0.5, 7)), happened("fenced", 3, "b", "t2", more=(2.0, 6))],
    ),
    "a lease whose fencing token goes back": (
        "F2",
        [happened("fenced", 1, "a", "t1", more=(0.5, 7)), happened("fenced", 3, "b", "t1", more=(2.0, 6))],
    ),
}
GOOD_CLAIMS = {
    "run, recorded, skipped": [
        claimed(1, "a", "t1", 9, 0.9),
        about("finished", 2, "a", "t1"),
        about("completing", 2, "a", "t1"),
        about("recorded", 2.1, "a", "t1", "r1"),
        about("skipped", 3, "b", "t1", "r1"),
    ],
    "asked for before it was recorded": [
        claimed(1, "a", "t1", 5, 0.9),
        about("completing", 4, "a", "t1"),
        about("recorded", 6, "a", "t1", "r1"),
        claimed(6.1, "b", "t2", 12, 5.5),
    ],
    "run again after it was given up": [
        claimed(1, "a", "t1", 9, 0.9),
        about("finished", 2, "a", "t1"),
        about("abandoned", 2, "a", "t1"),
        claimed(3, "b", "t2", 12, 2.9),
    ],
    "two results where a node forgot": [
        about("completing", 1, "a", "t1"),
        about("completing", 1.5, "b", "t2"),
        about("forgot", 2),
        about("recorded", 2.1, "a", "t1", "r1"),
        about("recorded", 2.2, "b", "t2", "r2"),
    ],
}
BAD_CLAIMS = {
    "run after it was recorded": (
        "O1",
        [
            claimed(1, "a", "t1", 9, 0.9),
            about("finished", 2, "a", "t1"),
            about("completing", 2, "a", "t1"),
            about("recorded", 2.1, "a", "t1", "r1"),
            about("unrecorded", 2.1, "a", "t1"),
            claimed(3, "b", "t2", 12, 2.9),
        ],
    ),
    "two runs at a time": ("O2", [claimed(1, "a", "t1", 9, 0.9), claimed(3, "b", "t2", 12, 2.9)]),
    "two results": (
        "O3",
        [
            about("completing", 1, "a", "t1"),
            about("recorded", 2, "a", "t1", "r1"),
            about("skipped", 3, "b", "t2", "r2"),
        ],
    ),
    "a run without a reason": (
        "O4",
        [claimed(1, "a", "t1", 9, 0.9), about("finished", 2, "a", "t1"), claimed(3, "b", "t2", 12, 2.9)],
    ),
    "a completion out of nothing": ("O4", [about("skipped", 1, "a", "t1", "r1")]),
    "another's claim renewed": (
        "S4",
        [
            Entry(
                "write", 1, "n0", "n:record:k", "t1", 0.0,
                ("renew", ("running 0 7 t2 0 9 - -", 5), ("running 0 7 t2 0 99 - -", 5)),
            )
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", GOOD_LOCKS.values(), ids=GOOD_LOCKS)
def test_good_lock_histories_pass(history: list[Entry]) -> None:
    assert violations(history, LOCK_CHECKS) == []


@pytest.mark.parametrize(("rule", "history"), BAD_LOCKS.values(), ids=BAD_LOCKS)
def test_bad_lock_histories_are_told_by_their_rule(rule: str, history: list[Entry]) -> None:
    assert rule in {found[:2] for found in violations(history, LOCK_CHECKS)}


@pytest.mark.parametrize("history", GOOD_CLAIMS.values(), ids=GOOD_CLAIMS)
def test_good_claim_histories_pass(history: list[Entry]) -> None:
    assert violations(history, CLAIM_CHECKS) == []


@pytest.mark.parametrize(("rule", "history"), BAD_CLAIMS.values(), ids=BAD_CLAIMS)
def test_bad_claim_histories_are_told_by_their_rule(rule: str, history: list[Entry]) -> None:
    assert rule in {found[:2] for found in violations(history, CLAIM_CHECKS)}


@pytest.mark.parametrize(
    ("bound", "found", "is_good"), [(1.0, 0.5, True), (1.0, 1.5, False), (1.0, None, False), (0, 0, True)]
)
def test_goals_are_reached_within_their_bound(bound: float, found: float | None, is_good: bool) -> None:  # noqa: FBT001
    assert (violations([Entry("goal", 9, key="x", more=("L1", bound, found))], LIVENESS_CHECKS) == []) is is_good
