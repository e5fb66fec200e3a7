"""Verify what is promised, layer by layer, and print one table: `python -m tests.verify`, which `make verify` runs.

A layer fails by a violation, by a test that was skipped, by a fault that nobody met or that came too seldom, and by not
being there at all. The tests tell what they counted through pytest's `record_property`:

    schedules, leases, claims, faults, mutants, …   added up
    violations                                      added up; each counts, also where the test itself passed
    "injected KIND", "observed KIND"                added up for each kind of fault
    seed, found                                     listed

The environment variable CHAOS_SCALE says which share of the faults to inject, 1 unless said. Status 0 if all is well,
else 1; the numbers are left in build/verification.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

from redlock.local import available_servers
from tests.verify.layers import LAYERS, ROOT, Layer
from tests.verify.results import Result, judged, summed, table

__all__ = ["main"]

BUILD = ROOT / "build"
LONGEST_FIRST = ("mutants", "claims", "locks", "models")


def run(layer: Layer) -> Result:
    """Run one layer with pytest."""
    files = layer.files()
    if not files:
        return judged(Result(layer.name))
    print(f"{layer.name} ...", flush=True)
    report, log = (BUILD / f"verify-{layer.name.replace(' ', '-')}.{kind}" for kind in ("xml", "log"))
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-o", "junit_family=xunit1", f"--junitxml={report}"]
    started = time.monotonic()
    with log.open("wb") as output:
        status = subprocess.run(
            [*command, *layer.options, *map(str, files)],
            cwd=ROOT,
            env={**os.environ, **dict(layer.env)},
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    found = ET.parse(report).getroot() if report.exists() else ET.Element("nothing")  # noqa: S314
    result = judged(summed(layer.name, found), layer.faults, float(os.environ.get("CHAOS_SCALE", "1")))
    result.seconds = time.monotonic() - started
    if status and not result.failures:
        result.problems.append(f"pytest ended with status {status}")
    if result.problems:
        print(f"{layer.name}: see {log}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n", flush=True)
    return result


def run_all(layers: Sequence[Layer], jobs: int) -> list[Result]:
    """Run layers, as many at once as there are jobs; those that must be alone come last, one by one."""
    together = [layer for layer in layers if not layer.is_alone]
    together.sort(key=lambda layer: [*LONGEST_FIRST, layer.name].index(layer.name))
    with ThreadPoolExecutor(jobs) as pool:
        results = {result.layer: result for result in pool.map(run, together)}
    results |= {layer.name: run(layer) for layer in layers if layer.is_alone}
    return [results[layer.name] for layer in layers]


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
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="layers at once; default: 2")
    options = parser.parse_args(arguments)
    if unknown := set(options.layer) - {layer.name for layer in LAYERS}:
        parser.error(f"no such layer: {', '.join(sorted(unknown))}")
    BUILD.mkdir(exist_ok=True)
    results = run_all([layer for layer in LAYERS if not options.layer or layer.name in options.layer], options.jobs)
    is_well = all(result.is_well for result in results)
    summary = {"ok": is_well, "versions": _versions(), "layers": [asdict(result) for result in results]}
    (BUILD / "verification.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(table(results))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
