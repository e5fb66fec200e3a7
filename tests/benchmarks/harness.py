"""How the benchmarks measure and report: interleaved rounds, medians, one table.

Two sides of a ratio are always measured in one run, in turn (ABAB...), so that whatever else the machine does hits
both. A side returns one number per round; what is reported is the median of the rounds, with their range. Nothing here
asserts: a target that was missed stands in the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure.

    Args:
        quick: Small counts, to see that all runs; the numbers mean little.
        minutes: Length of the reference load.
    """

    quick: bool = False
    minutes: float = 2.0

    def count(self, full: int, quick: int) -> int:
        """Return a number of operations or rounds."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """Return how often each side is measured."""
        return self.count(15, 3)


class Samples(list[float]):
    """One number per round."""

    @property
    def median(self) -> float:
        """Return the middle one."""
        return statistics.median(self)

    def shown(self, unit: str, scale: float = 1.0) -> str:
        """Return the median and the range, multiplied by a scale."""
        low, middle, high = (figure(value * scale) for value in (min(self), self.median, max(self)))
        return f"{middle} {unit} ({low}..{high})"


@dataclass(frozen=True, slots=True)
class Target:
    """What was aimed at: at least or at most a number."""

    bound: float
    is_least: bool

    def __str__(self) -> str:
        return f"{'>=' if self.is_least else '<='} {figure(self.bound)}"

    def is_met(self, value: float) -> bool:
        """Tell whether a measured value is on the right side."""
        return value >= self.bound if self.is_least else value <= self.bound


def at_least(bound: float) -> Target:
    """Return a target for what should be large."""
    return Target(bound, is_least=True)


def at_most(bound: float) -> Target:
    """Return a target for what should be small."""
    return Target(bound, is_least=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        what: What was measured.
        measured: The value; None if it could not be had, for the reason in the note.
        unit: Of the value; "x" for a ratio.
        target: What was aimed at, if anything.
        ours: The side that is ours, with its unit.
        other: The side it is compared with.
        note: How it was measured, or why not; printed below the table.
    """

    what: str
    measured: float | None
    unit: str = "x"
    target: Target | None = None
    ours: str = ""
    other: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """Return whether the target was met; nothing where there is none."""
        if self.measured is None:
            return "NOT MEASURED"
        if self.target is None:
            return ""
        return "met" if self.target.is_met(self.measured) else "MISSED"

    def as_json(self, subject: str) -> dict[str, Any]:
        """Return the row for a file."""
        return {
            "subject": subject,
            "what": self.what,
            "measured": self.measured,
            "unit": self.unit,
            "target": str(self.target) if self.target else None,
            "verdict": self.verdict,
            "ours": self.ours,
            "other": self.other,
            "note": self.note,
        }


def interleaved(sides: Mapping[str, Measure], rounds: int) -> dict[str, Samples]:
    """Measure each side once per round, in turn; a first round only warms up."""
    found = {name: Samples() for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            value = measure()
            if number:
                found[name].append(value)
    return found


def mean_seconds(operation: Callable[[], object], count: int) -> float:
    """Return the seconds that one of ``count`` operations takes on average."""
    started = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - started) / count


def median_seconds(operation: Callable[[], object], count: int, between: Callable[[], object] = lambda: None) -> float:
    """Return the median length of ``count`` operations; what is done between two of them is not timed."""
    lengths = []
    for _ in range(count):
        started = time.perf_counter()
        operation()
        lengths.append(time.perf_counter() - started)
        between()
    return statistics.median(lengths)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figure(value: float) -> str:
    """Return a number with three significant digits, never in powers of ten."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """Return the rows as text, the notes below."""
    lines = [("subject", "what", "measured", "target", "", "ours", "against")]
    notes: list[str] = []
    for subject, row in rows:
        measured = "-" if row.measured is None else f"{figure(row.measured)} {row.unit}"
        mark = ""
        if row.note:
            if row.note not in notes:
                notes.append(row.note)
            mark = f" [{notes.index(row.note) + 1}]"
        target = f"{row.target} {row.unit}" if row.target else "-"
        lines.append((subject, row.what + mark, measured, target, row.verdict, row.ours, row.other))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    shown.insert(1, "  ".join("-" * width for width in widths))
    shown += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(shown)
