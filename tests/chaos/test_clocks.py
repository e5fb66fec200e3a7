"""Each node has a wall clock of its own, which runs fast or slow, or steps.

One group of tests goes beyond what is promised, on purpose: there the checkers must find the violation.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redlock.local import LocalNodes
from tests.chaos.fleet import Fleet, times
from tests.tools.peek import ask, happens
from tests.tools.wallskew import WallSkew, compiled_shim

pytestmark = pytest.mark.chaos


class Skewed:
    """Nodes with a wall clock each."""

    def __init__(self, folder: Path, binary: str, size: int, stack: ExitStack) -> None:
        library = compiled_shim(folder)
        self.skews = [WallSkew(library, folder) for _ in range(size)]
        self.nodes = []
        for number, skew in enumerate(self.skews):
            stack.callback(skew.close)
            wrapper = folder / f"server{number}"
            settings = " ".join(f"{name}='{skew.env()[name]}'" for name in ("LD_PRELOAD", "WALLSKEW_FILE"))
            wrapper.write_text(f'#!/bin/sh\n{settings} exec "{binary}" "$@"\n')
            wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
            self.nodes += stack.enter_context(LocalNodes(1, binary=str(wrapper)))

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [node.url for node in self.nodes]

    def offset(self, index: int) -> float:
        """Return how far a node's clock is ahead of ours."""
        seconds, microseconds = ask(self.urls[index], "TIME")
        return float(int(seconds) + int(microseconds) / 1e6 - time.time())


@pytest.fixture
def skewed(each_server: str, size: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skewed]:
    """Nodes, each on a clock of its own; the test runs for each server and number."""
    with ExitStack() as stack:
        yield Skewed(tmp_path_factory.mktemp("clocks"), each_server, size, stack)


def test_clock_rates_within_drift(skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """Each clock runs up to 0.4 % fast or slow, which the allowance for drift covers."""
    seen = 0
    everybody = range(len(skewed.nodes))
    with Fleet(tmp_path, skewed.urls, ttl=1.0, long=0.5) as fleet:
        for _ in times(5):
            for skew in skewed.skews:
                skew.rate(fleet.random.choice([-4_000, 4_000]))
            before = [skewed.offset(index) for index in everybody]
            time.sleep(0.7)
            seen += all(abs(skewed.offset(index) - before[index]) > 0.0005 for index in everybody)
        record_property("injected clock rate", len(times(5)))
        record_property("observed clock rate", seen)
        assert seen
        judge(fleet, fleet.names)


def test_clock_steps_of_a_minority(skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """A step back, by up to twice the ttl: such nodes only stay away or keep keys for longer."""
    seen = 0
    size, minority = len(skewed.nodes), (len(skewed.nodes) - 1) // 2
    with Fleet(tmp_path, skewed.urls, ttl=0.5) as fleet:
        for number in times(5):
            step = (0.5, 1.0, 2.0)[number % 3] * fleet.ttl
            for index in [(number * minority + offset) % size for offset in range(minority)]:
                before = skewed.offset(index)
                skewed.skews[index].jump(-step)
                seen += happens(lambda: skewed.offset(index) < before - step / 2)  # noqa: B023 - called at once
            time.sleep(0.5)
        record_property("injected clock step back", minority * len(times(5)))
        record_property("observed clock step back", seen)
        assert seen == minority * len(times(5))
        judge(fleet, fleet.names)


ROUNDS = 6  # as often whatever the scale: what must be seen needs its time
LIMITS: dict[str, Callable[[WallSkew, float], None]] = {
    "step": lambda skew, ttl: skew.jump(2 * ttl),
    "rate of 10 %": lambda skew, _ttl: skew.rate(100_000),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_clocks_beyond_what_is_promised_must_be_seen(
    skewed: Skewed, tmp_path: Path, judge: Any, record_property: Any, limit: str
) -> None:
    """A majority that lets leases end early gives the lock to a second holder: the checkers have to find it."""
    with Fleet(tmp_path, skewed.urls, ttl=1.0, long=0.95) as fleet:
        for _ in range(ROUNDS):
            for skew in skewed.skews[: len(skewed.nodes) // 2 + 1]:
                LIMITS[limit](skew, fleet.ttl)
            time.sleep(0.8)
        outcome = judge(fleet, fleet.names, expected=True)
    record_property(f"injected clock {limit}", ROUNDS)
    record_property(f"observed clock {limit}", min(ROUNDS, outcome.violations["overlaps"]))
    assert outcome.violations["overlaps"], "the checkers are blind: clocks beyond the promise were not noticed"
