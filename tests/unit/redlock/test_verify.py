"""The verification's own judgement: nothing that is missing, skipped or unseen passes for verified."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.verify.__main__ import main
from tests.verify.layers import LAYERS
from tests.verify.results import Result, judged, summed, table


def report(*cases: str) -> Result:
    """Return what a JUnit report with these test cases adds up to."""
    text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    return summed("layer", ET.fromstring(text))  # noqa: S314


def case(outcome: str = "", **properties: float) -> str:
    """Return a test case in JUnit's XML."""
    listed = "".join(f'<property name="{name.replace("_", " ")}" value="{n}"/>' for name, n in properties.items())
    return f'<testcase name="t"><properties>{listed}</properties>{outcome}</testcase>'


def test_numbers_are_added_up() -> None:
    result = judged(report(case(leases=3, injected_pause=2, observed_pause=1), case(leases=4, injected_pause=1)))
    assert (result.tests, result.counts, result.injected, result.observed) == (
        2,
        {"leases": 7},
        {"pause": 3},
        {"pause": 1},
    )
    assert result.is_well


def test_slowest_call_of_a_test_in_any_of_its_runs_is_shown() -> None:
    result = judged(report(case(slowest_acquire=0.25), case(slowest_acquire=0.5), case(slowest_release=0.125)))
    assert result.slowest == {"acquire in t": 0.5, "release in t": 0.125}
    assert "layer: slowest acquire in t: 0.500 s" in table([result])


@pytest.mark.parametrize(
    ("cases", "problem"),
    [
        ([], "MISSING"),
        ([case("<failure/>")], "1 tests failed"),
        ([case("<error/>")], "1 tests failed"),
        ([case(violations=2)], "2 violations"),
        ([case('<skipped message="no netem"/>')], "SKIPPED: t: no netem"),
        ([case(injected_pause=2, observed_pause=0)], "nobody met: pause"),
        ([case(injected_restart=1, observed_restart=1)], "not injected: pause"),
        ([case(injected_pause=1, observed_pause=1)], "injected too seldom: pause"),
    ],
    ids=["nothing run", "failure", "error", "violation", "skip", "unseen fault", "fault left out", "too few"],
)
def test_what_is_wrong_is_said(cases: list[str], problem: str) -> None:
    needed = {"pause": 2} if "injected" in problem else {}
    result = judged(report(*cases), needed)
    assert [each for each in result.problems if each.startswith(problem)]
    assert not result.is_well
    assert "FAILED" in table([result])
    assert problem in table([result])


def test_part_of_a_full_run_needs_its_share_of_the_faults() -> None:
    few = case(injected_pause=15, observed_pause=15)
    assert judged(report(few), {"pause": 50}, 0.3).is_well
    assert not judged(report(few), {"pause": 51}, 0.3).is_well
    assert "injected 15 of 50 in a full run, met 15" in table([judged(report(few), {"pause": 50}, 0.3)])


def test_table_has_a_line_per_layer_and_the_bound() -> None:
    text = table([judged(report(case(schedules=10_000))), judged(report(case()))])
    assert "10,000 schedules: fewer than 0.0300% violate" in text
    assert "FAILED" not in text


def test_layers_have_files_of_their_own() -> None:
    """A file in two layers would be counted twice, and one in none never run."""
    simulation = [
        path
        for layer in LAYERS
        if layer.name in ("models", "locks", "claims", "mutants", "virtual nodes")
        for path in layer.files()
    ]
    assert len(simulation) == len(set(simulation))
    assert {path.name for path in simulation} == {path.name for path in simulation[0].parent.rglob("test_*.py")}


def test_layer_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no such layer"])
    assert "no such layer" in capsys.readouterr().err
