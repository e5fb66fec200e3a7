"""Verify what is promised, layer by layer, and print one table: `python -m tests.verify`, which `make verify` runs.

A layer fails by a violation, by a test that was skipped, by a fault that nobody met, and by not being there at all. The
tests tell what they counted through pytest's `record_property`:

    schedules, leases, messages, states, examples   added up
    violations                                      added up; each counts, also where the test itself passed
    "injected KIND", "observed KIND"                added up for each kind of fault
    seed                                            listed

Status 0 if all is well, else 1; the numbers are left in build/verification.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

from redlock.local import available_servers

__all__ = ["LAYERS", "Layer", "Result", "judged", "main", "summed", "table"]

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
COUNTED = ("schedules", "leases", "messages", "states", "examples")
PROXY_MODES = ("refuse", "reset", "hang", "drop_requests", "drop_replies", "delay", "inject", "garbage", "cut")
NEEDED_FAULTS = (
    "restart",
    "pause",
    *(f"proxy {mode}" for mode in PROXY_MODES),
    "clock rate",
    "clock step back",
    "clock step",
    "clock rate of 10 %",
    "client stop",
    "client kill",
)
"""What the chaos layer has to inject."""


@dataclass(frozen=True)
class Layer:
    """One layer of the verification.

    Args:
        name: Its name.
        files: Returns its test files or folders; none means that it is missing.
        options: More arguments for pytest.
        env: More environment.
        faults: Kinds of faults that must have been injected.
    """

    name: str
    files: Callable[[], list[Path]]
    options: Sequence[str] = ()
    env: tuple[tuple[str, str], ...] = ()
    faults: Sequence[str] = ()


def _tests(folder: str, pattern: str = "test_*.py", *, without: str = "") -> list[Path]:
    found = (ROOT / "tests" / folder).rglob(pattern)
    return sorted(path for path in found if not (without and path.match(without)))


def _simulations() -> list[Path]:
    """Return the tests that play schedules on the shipping code, so neither the models nor the virtual nodes' own."""
    return [path for path in _tests("simulation", without="*_model.py") if path.name != "test_sim_nodes.py"]


LAYERS = (
    Layer("models", lambda: _tests("simulation", "test_*_model.py"), ["--timeout=900"]),
    Layer("simulation", _simulations, ["--timeout=3000"], (("SIMULATION", "full"),)),
    Layer("virtual nodes", lambda: _tests("simulation", "test_sim_nodes.py"), ["--timeout=600"]),
    Layer("properties", lambda: _tests("unit"), ["-m", "hypothesis", "--timeout=600"]),
    Layer("chaos", lambda: _tests("chaos"), ["-m", "chaos"], faults=NEEDED_FAULTS),
)


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
    seeds: list[str] = field(default_factory=list)
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
    injected: Counter[str] = Counter()
    observed: Counter[str] = Counter()
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
            elif key == "violations":
                result.violations += int(value)
            elif key in COUNTED:
                counts[key] += int(value)
            elif key.startswith("injected "):
                injected[key.removeprefix("injected ")] += int(value)
            elif key.startswith("observed "):
                observed[key.removeprefix("observed ")] += int(value)
    result.counts, result.injected, result.observed = dict(counts), dict(injected), dict(observed)
    return result


def judged(result: Result, needed: Iterable[str] = ()) -> Result:
    """Say what is wrong with a layer."""
    problems = result.problems
    if not result.tests:
        problems.append("MISSING: no test was run")
    if result.failures:
        problems.append(f"{result.failures} tests failed")
    if result.violations:
        problems.append(f"{result.violations} violations")
    problems += [f"SKIPPED: {reason}" for reason in result.skipped]
    if result.tests:
        problems += [f"not injected: {kind}" for kind in needed if not result.injected.get(kind)]
    problems += [
        f"nobody met: {kind}" for kind, count in result.injected.items() if count and not result.observed.get(kind)
    ]
    return result


def run(layer: Layer) -> Result:
    """Run one layer with pytest."""
    files = layer.files()
    if not files:
        return judged(Result(layer.name))
    report, log = (
        BUILD / f"verify-{layer.name.replace(' ', '-')}.xml",
        BUILD / f"verify-{layer.name.replace(' ', '-')}.log",
    )
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "junit_family=xunit1",
        f"--junitxml={report}",
        *layer.options,
        *map(str, files),
    ]
    started = time.monotonic()
    with log.open("wb") as output:
        status = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **dict(layer.env)}, stdout=output, stderr=output, check=False
        ).returncode
    found = ET.parse(report).getroot() if report.exists() else ET.Element("nothing")  # noqa: S314
    result = judged(summed(layer.name, found), layer.faults)
    result.seconds = time.monotonic() - started
    if status and not result.failures:
        result.problems.append(f"pytest ended with status {status}")
    if result.problems:
        print(*log.read_text(errors="replace").splitlines()[-40:], sep="\n")
    return result


def table(results: Sequence[Result]) -> str:
    """Return the results as a table."""
    rows = [("layer", "tests", "what was counted", "violations", "faults met/injected", "seconds", "")]
    for result in results:
        counted = ", ".join(f"{count:,} {what}" for what, count in result.counts.items())
        faults = f"{sum(result.observed.values())}/{sum(result.injected.values())}" if result.injected else ""
        verdict = "ok" if result.is_well else "FAILED"
        violations = max(result.violations, result.failures)
        rows.append(
            (result.layer, f"{result.tests}", counted, f"{violations}", faults, f"{result.seconds:.0f}", verdict)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for result in results:
        lines += [f"{result.layer}: {problem}" for problem in result.problems]
        lines += [
            f"{result.layer}: {kind}: injected {count}, met {result.observed.get(kind, 0)}"
            for kind, count in result.injected.items()
        ]
        if schedules := result.counts.get("schedules"):
            lines.append(f"{result.layer}: {schedules:,} schedules: fewer than {3 / schedules:.4%} violate (95 %)")
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("redis", "dramatiq", "tenacity", "hypothesis", "pytest")}
    for server in available_servers():
        output = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
        found[Path(server).name] = output.strip()
    return found | {"python": platform.python_version(), "system": platform.platform()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all layers, or those that are named; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify", description=__doc__.splitlines()[0])
    parser.add_argument("layer", nargs="*", help=f"of {', '.join(layer.name for layer in LAYERS)}; default: all")
    wanted = parser.parse_args(arguments).layer
    if unknown := set(wanted) - {layer.name for layer in LAYERS}:
        parser.error(f"no such layer: {', '.join(sorted(unknown))}")
    BUILD.mkdir(exist_ok=True)
    results = []
    for layer in LAYERS:
        if not wanted or layer.name in wanted:
            print(f"{layer.name} ...", flush=True)
            results.append(run(layer))
    is_well = all(result.is_well for result in results)
    summary = {"ok": is_well, "versions": _versions(), "layers": [asdict(result) for result in results]}
    (BUILD / "verification.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(table(results))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
