"""Nodes of each kind and number, and the end of a fleet: what came of it goes into the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redlock.local import LocalNodes
from tests.chaos.fleet import SCALE, Fleet
from tests.chaos.outcome import Outcome
from tests.tools.peek import ask, happens


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time in proportion to the faults that it injects."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(90 + 120 * SCALE))


@pytest.fixture(params=[3, 5], ids="{} nodes".format)
def size(request: pytest.FixtureRequest) -> int:
    """How many nodes there are; the test runs once for each number."""
    number: int = request.param
    return number


@pytest.fixture
def start_nodes(local_nodes: Callable[..., LocalNodes], each_server: str, size: int) -> Callable[..., LocalNodes]:
    """Return a function that starts nodes: `start_nodes(persistence=…)`; the test runs for each server and number."""
    return lambda **options: local_nodes(size, binary=each_server, **options)


@pytest.fixture
def nodes(start_nodes: Callable[..., LocalNodes]) -> LocalNodes:
    """Nodes without persistence that the test may harm."""
    return start_nodes()


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Callable[..., Outcome]:
    """Return a function that ends a fleet, reports what came of it, and asserts that every fault was noticed."""

    def end(fleet: Fleet, names: list[str], *, noticed: float = 1.0, expected: bool = False) -> Outcome:
        outcome = fleet.outcome(len(names), names)
        violations = sum(outcome.violations.values())
        record_property("leases", len(outcome.holds))
        record_property("violations", 0 if expected else violations)
        record_property("seed", fleet.seed)
        for what, seconds in outcome.slowest.items():
            record_property(f"slowest {what}", round(seconds, 3))
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
        return outcome

    return end


def _left(names: list[str]) -> list[str]:
    """Return lock keys, and keys without an end but for the marker; after the last lease there are none."""
    keys = [(name, key) for name in names for key in ask(f"redis://{name}", "KEYS", "*")]
    return [
        key
        for name, key in keys
        if key.startswith("redlock:lock:") or (key != "redlock:marker" and ask(f"redis://{name}", "PTTL", key) == -1)
    ]
