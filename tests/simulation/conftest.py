"""The end of a campaign: what it counted goes into the report, and what broke is told so that it can be replayed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.campaign import Report, explained


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return a function that reports a campaign, and fails with all that is needed to look at what broke."""

    def end(world: ModuleType, report: Report, **options: Any) -> None:
        print(report)
        seen = report.seen
        record_property("schedules", report.schedules)
        record_property("violations", len(report.broken))
        record_property("faults", sum(count for what, count in seen.items() if what.startswith("fault: ")))
        record_property("leases", seen["granted"] + seen["attached"])
        record_property("claims", seen["claimed"])
        assert not report.broken, "\n\n".join(explained(world, outcome, **options) for outcome in report.broken[:2])

    return end
