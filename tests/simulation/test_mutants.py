"""Each rule that is taken out of the shipping code is noticed by the simulation."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from tests.simulation.campaign import is_full
from tests.simulation.mutant import BUDGET, Mutant, hunt
from tests.simulation.mutants import MUTANTS
from tests.simulation.replay import main
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
def test_rule_is_missed_when_it_is_taken_out(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    """The promise that depends on the rule breaks within the budget, and not without the mutant."""
    finding = hunt(mutant)
    assert finding is not None, f"not found within {BUDGET} schedules"
    print(finding, finding.violation, f"replay: {finding.command}", sep="\n")
    record_property("mutants", 1)
    record_property("found", str(finding))


def test_all_mutants_still_apply() -> None:
    """Every text that a mutant replaces stands in the shipping code, also those that a quick run does not play."""
    assert {mutant.name for mutant in MUTANTS} >= QUICK
    for mutant in MUTANTS:
        with loaded(f"{mutant.mode}_world", mutant.edits) as world:
            assert world.play(1, **mutant.options).digest


def test_printed_command_shows_the_violation_again(capsys: pytest.CaptureFixture[str]) -> None:
    """What a finding prints can be pasted: the same promise breaks, and the exit status says so."""
    finding = hunt(next(mutant for mutant in MUTANTS if mutant.name == "quorum off by one"))
    assert finding is not None
    prefix = "python -m tests.simulation.replay "
    assert finding.command.startswith(prefix)
    assert main(shlex.split(finding.command.removeprefix(prefix))) == 1
    assert finding.violation in capsys.readouterr().out


def test_text_that_is_not_there_is_an_error() -> None:
    """A mutant that changes nothing proves nothing."""
    with (
        pytest.raises(MutationError, match="0 times"),
        loaded("lock_world", [Edit("redlock/plan.py", "no such text", "")]),
    ):
        pass
