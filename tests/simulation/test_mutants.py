"""Each rule that is taken out of the shipping code is noticed by the simulation."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import is_full
from tests.simulation.mutants import BUDGET, MUTANTS, Mutant, hunt
from tests.simulation.shipping import Edit, MutationError, loaded

QUICK = {
    "quorum off by one",
    "release without a look at the owner",
    "no guard after forgetting",
    "nothing taken back",
    "fencing token without write-back",
    "acknowledged with one node less than W",
}
"""Those that are found at once; a quick run has time for no others."""
CHOSEN = [mutant for mutant in MUTANTS if is_full() or mutant.name in QUICK]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", CHOSEN, ids=[mutant.name.replace(" ", "-") for mutant in CHOSEN])
def test_rule_is_missed_when_it_is_taken_out(mutant: Mutant) -> None:
    """The promise that depends on the rule breaks within the budget, and not without the mutant."""
    finding = hunt(mutant)
    assert finding is not None, f"not found within {BUDGET} schedules"
    print(f"found after {finding.schedules} schedules, at seed {finding.seed}: {finding.violation}")


def test_all_mutants_still_apply() -> None:
    """Every text that a mutant replaces stands in the shipping code, also those that a quick run does not play."""
    assert {mutant.name for mutant in MUTANTS} >= QUICK
    for mutant in MUTANTS:
        with loaded(f"{mutant.mode}_world", mutant.edits) as world:
            assert world.play(1, **mutant.options).digest


def test_text_that_is_not_there_is_an_error() -> None:
    """A mutant that changes nothing proves nothing."""
    with (
        pytest.raises(MutationError, match="0 times"),
        loaded("lock_world", [Edit("redlock/plan.py", "no such text", "")]),
    ):
        pass
