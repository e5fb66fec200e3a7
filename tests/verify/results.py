"""What came of a layer: its JUnit report added up, what is wrong with it, and all of it as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

__all__ = ["Result", "judged", "summed", "table"]

COUNTED = ("schedules", "leases", "claims", "faults", "mutants", "messages", "states", "examples")


@dataclass
class Result:
    """What came of one layer."""

    layer: str
    tests: int = 0
    failures: int = 0
    violations: int = 0
    skipped: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)
    observed: dict[str, int] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)
    seeds: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.problems


def summed(name: str, report: ET.Element) -> Result:
    """Add up what a JUnit report says about a layer."""
    result = Result(name)
    counts: Counter[str] = Counter()
    faults: dict[str, Counter[str]] = {"injected": Counter(), "observed": Counter()}
    for case in report.iter("testcase"):
        result.tests += 1
        result.failures += any(case.find(outcome) is not None for outcome in ("failure", "error"))
        skip = case.find("skipped")
        if skip is not None:
            result.skipped.append(f"{case.get('name')}: {skip.get('message', '')}")
        for prop in case.iter("property"):
            key, value = prop.get("name", ""), prop.get("value", "")
            if key == "seed":
                result.seeds.append(value)
            elif key == "found":
                result.found.append(value)
            elif key == "violations":
                result.violations += int(value)
            elif key in COUNTED:
                counts[key] += int(value)
            elif key.startswith("slowest "):
                what = f"{key.removeprefix('slowest ')} in {(case.get('name') or '').partition('[')[0]}"
                result.slowest[what] = max(float(value), result.slowest.get(what, 0.0))
            elif (sort := key.partition(" ")[0]) in faults:
                faults[sort][key.removeprefix(f"{sort} ")] += int(value)
    result.counts = dict(counts)
    result.injected, result.observed = dict(faults["injected"]), dict(faults["observed"])
    return result


def judged(result: Result, needed: Mapping[str, int] | None = None, scale: float = 1.0) -> Result:
    """Say what is wrong with a layer.

    Args:
        result: Of the layer.
        needed: The faults that have to be injected, and how often in a full run.
        scale: Share of a full run that was asked for.
    """
    problems = result.problems
    result.needed = dict(needed or {})
    if not result.tests:
        problems.append("MISSING: no test was run")
    if result.failures:
        problems.append(f"{result.failures} tests failed")
    if result.violations:
        problems.append(f"{result.violations} violations")
    problems += [f"SKIPPED: {reason}" for reason in result.skipped]
    for kind, count in result.needed.items() if result.tests else ():
        injected = result.injected.get(kind, 0)
        if not injected:
            problems.append(f"not injected: {kind}")
        elif injected < count * min(scale, 1.0):
            problems.append(f"injected too seldom: {kind}")
    problems += [
        f"nobody met: {kind}" for kind, count in result.injected.items() if count and not result.observed.get(kind)
    ]
    return result


def table(results: Sequence[Result]) -> str:
    """Return the results: what does not fit into a table, and the table."""
    rows = [("layer", "tests", "what was counted", "violations", "faults met/injected", "seconds", "")]
    for result in results:
        counted = ", ".join(f"{count:,} {what}" for what, count in result.counts.items() if count)
        faults = f"{sum(result.observed.values())}/{sum(result.injected.values())}" if result.injected else ""
        verdict = "ok" if result.is_well else "FAILED"
        violations = max(result.violations, result.failures)
        rows.append(
            (result.layer, f"{result.tests}", counted, f"{violations}", faults, f"{result.seconds:.0f}", verdict)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([line for result in results for line in _details(result)] + ["", *lines])


def _details(result: Result) -> list[str]:
    """Return what does not fit into the table: problems, faults by kind, mutants, the bound on what was missed."""
    lines = [f"{result.layer}: {problem}" for problem in result.problems]
    for kind, count in result.injected.items():
        wanted = f" of {result.needed[kind]} in a full run" if kind in result.needed else ""
        lines.append(f"{result.layer}: {kind}: injected {count}{wanted}, met {result.observed.get(kind, 0)}")
    lines += [f"{result.layer}: slowest {what}: {seconds:.3f} s" for what, seconds in sorted(result.slowest.items())]
    lines += [f"{result.layer}: found: {what}" for what in result.found]
    if schedules := result.counts.get("schedules"):
        lines.append(f"{result.layer}: {schedules:,} schedules: fewer than {3 / schedules:.4%} violate (95 %)")
    return lines
