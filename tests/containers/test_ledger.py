"""The checks of the container tests find what they are there for; without containers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.containers.ledger import Ledger

WELL = {
    "sent": ("a", "b"),
    "requests": Counter(a=1, b=1),
    "charges": Counter(a=1, b=1),
    "completions": Counter(a=3, b=2),
}
WRONG = {
    "lost": {"requests": Counter(a=1), "charges": Counter(a=1)},
    "charged twice": {"charges": Counter(a=1, b=2)},
    "not recorded": {"completions": Counter(a=3, b=1)},
    "never sent": {"requests": Counter(a=1, b=1, c=1)},
    "ran twice": {"requests": Counter(a=1, b=2)},
}


def test_nothing_is_wrong_when_all_is_well():
    assert Ledger(**WELL).wrongs() == {}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_wrong_is_found(wrong):
    assert list(Ledger(**(WELL | WRONG[wrong])).wrongs()) == [wrong]


def test_a_worker_that_died_excuses_a_second_run_and_no_second_charge():
    ledger = Ledger(**(WELL | WRONG["ran twice"] | WRONG["charged twice"]))
    assert ledger.wrongs(runs_once=False) == {"charged twice": ["b"]}
