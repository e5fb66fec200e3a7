"""Measure: ``python -m tests.benchmarks [names...] [--quick] [--minutes N] [--json FILE]``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path

from redlock.local import available_servers
from tests.benchmarks.harness import Options, Row, table

# Name -> what it is about; each is a module here whose `run(options)` yields rows.
SUBJECTS = {
    "lock": "acquire and release against the same bytes on bare sockets; cost of the script in the server",
    "rivals": "acquire and release against redlock-py, redlock-ng and pottery",
    "trips": "round trips of an acquisition over a slow network",
    "paused": "one of three nodes hangs",
    "renewal": "1,000 leases kept alive",
    "tasks": "asyncio against threads",
    "claims": "claim and completion against a plain lock on one node",
    "worker": "no-op actors in a real worker, with and without the middleware",
    "load": "10,000 payments a minute while a node is down half of the time",
    "records": "1,000,000 completed records on each node",
}


def main() -> int:
    """Run the subjects that were asked for; return 1 if one of them broke."""
    options, names, json_file = _arguments()
    where = _machine()
    rows: list[tuple[str, Row]] = []
    broken = False
    for name in names:
        began = time.monotonic()
        print(f"{name}: {SUBJECTS[name]} ...", file=sys.stderr, flush=True)
        try:
            subject = importlib.import_module(f"tests.benchmarks.{name}")
            rows += [(name, row) for row in subject.run(options)]
        except Exception as error:  # noqa: BLE001 - the other subjects still count
            broken = True
            traceback.print_exc()
            rows.append((name, Row("the measurement itself", None, note=f"BROKE: {type(error).__name__}: {error}")))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(*(f"{key}: {value}" for key, value in where.items()), sep="\n")
    print(table(rows), flush=True)
    if json_file:
        found = {"where": where, "rows": [row.as_json(name) for name, row in rows]}
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return int(broken)


def _arguments() -> tuple[Options, list[str], Path | None]:
    listed = "\n".join(f"  {name:10}{about}" for name, about in SUBJECTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=f"Measure; without names, everything:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it runs, measures little")
    parser.add_argument("--minutes", type=float, default=2.0, help="length of the reference load (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to a file")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SUBJECTS):
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; known are {', '.join(SUBJECTS)}")
    return Options(given.quick, given.minutes), given.names or list(SUBJECTS), given.json


def _machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs",
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "servers": ", ".join(Path(server).name for server in available_servers()),
        "each side": "median (lowest..highest) of interleaved rounds",
    }


if __name__ == "__main__":
    sys.exit(main())
