"""Four client processes on some nodes, and the faults that a test puts on both; in the end, what came of it."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redlock import Redlock, clock
from tests.chaos.history import Event, read
from tests.chaos.outcome import Outcome, outcome_of
from tests.tools.peek import ROOT, happens

__all__ = ["QUIET", "RESOURCES", "SCALE", "Fleet", "Hit", "times"]

SCALE = float(os.environ.get("CHAOS_SCALE", "1"))
"""Share of the faults that a full run injects."""
RESOURCES = ["a", "b"]
QUIET = 0.1
"""Seconds between two faults."""


def times(count: int) -> range:
    """Return as many rounds, scaled; one at least."""
    return range(math.ceil(count * SCALE))


@dataclass(frozen=True)
class Hit:
    """What a fault does to one node or one client, how it is undone, and who it is: `node` or `victim`."""

    do: Callable[[], Any]
    undo: Callable[[], Any]
    target: dict[str, Any]


class Fleet:
    """Client processes on nodes; see client.py.

    Args:
        folder: Where they write their histories.
        urls: The nodes, or proxies in front of them.
        clients: How many.
        ttl: Of a lease, in seconds.
        long: Share of the leases that are held to their end.
        looks_at: Where clients look at their keys; default `urls`, which must not be proxies that lie.
        options: Further settings of the lock.
    """

    def __init__(
        self,
        folder: Path,
        urls: Sequence[str],
        *,
        clients: int = 4,
        ttl: float = 0.5,
        long: float = 0.04,
        looks_at: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._folder = folder
        self.ttl = ttl
        self.options = {"max_ttl": 1.2, "node_timeout": 0.1} | options
        self.seed = int(os.environ.get("CHAOS_SEED", random.randrange(10**9)))
        self.random = random.Random(self.seed)
        self._faults: list[Event] = []
        self._names = (f"client{number}" for number in itertools.count(1))
        self._urls = list(urls)
        self._looks_at = list(looks_at or urls)
        self._clients = clients
        self._long = long
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Fleet:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        print(f"replay the faults: CHAOS_SEED={self.seed} CHAOS_SCALE={SCALE:g} python -m pytest -m chaos '{test}'")
        patient = self.options | {"node_timeout": self.options["max_ttl"]}
        redlock = Redlock(self._urls, self.ttl, observer=lambda _event: None, **patient)
        redlock.bootstrap()
        redlock.close()
        settings = {
            "urls": self._urls,
            "looks_at": self._looks_at,
            "ttl": self.ttl,
            "long": self._long,
            "options": self.options,
            "resources": RESOURCES,
            "seed": self.seed,
        }
        (self._folder / "settings.json").write_text(json.dumps(settings))
        for resource in RESOURCES:
            (self._folder / f"counter-{resource}").write_text("0")
            (self._folder / f"ledger-{resource}").touch()
        for _ in range(self._clients):
            self.start_client()
        assert happens(lambda: len({event["client"] for event in self.history()}) == self._clients, within=15.0)
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start_client(self) -> str:
        """Start one client more; return its name."""
        name = next(self._names)
        command = [sys.executable, "-m", "tests.chaos.client", str(self._folder), name]
        log = (self._folder / f"{name}.log").open("wb")
        with log:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        return name

    def history(self) -> list[Event]:
        """Return what the clients have written so far."""
        return read(self._folder.glob("*.jsonl"))

    @property
    def names(self) -> list[str]:
        """The nodes' names as clients report them."""
        return [url.removeprefix("redis://") + "/0" for url in self._urls]

    @property
    def _longest_calls(self) -> dict[str, float]:
        """Seconds that a call may take whatever the nodes do: its rounds, each a time-out, and what it may wait.

        Acquire tries for a ttl and once more, twice if a node was admitted; each time it asks, admits in two steps,
        raises max_ttl in two, and confirms the fencing token.
        """
        node_timeout, slack = self.options["node_timeout"], 0.1
        return {
            "acquire": self.ttl + 2 * 6 * node_timeout + slack,
            "extend": 2 * node_timeout + slack,
            "release": node_timeout + slack,
        }

    @property
    def guard_wait(self) -> float:
        """Seconds after which a node that forgot votes again, and somebody has tried."""
        return self.options["max_ttl"] * 1.02 + 0.1

    def fault(self, kind: str, seconds: float, *hits: Hit) -> None:
        """Hit some at once, undo it after some seconds, and write down what it was and from when to when."""
        began = []
        for hit in hits:
            began.append({"t": clock(), "client": "test", "op": "fault", "kind": kind, **hit.target})
            hit.do()
        time.sleep(seconds)
        for hit, event in zip(hits, began, strict=True):
            hit.undo()
            self._faults.append(event | {"until": clock()})

    def next_event(self, op: str, client: str, since: float) -> Event:
        """Wait for what a client writes down after a moment."""
        found: list[Event] = []

        def look() -> bool:
            found[:] = [
                event
                for event in self.history()
                if event["op"] == op and event["client"] == client and event["t"] > since
            ]
            return bool(found)

        assert happens(look, within=10.0), f"{client} has no {op}"
        return found[0]

    def signal(self, client: str, number: signal.Signals) -> None:
        """Send a signal to a client."""
        self.processes[client].send_signal(number)

    def alive(self) -> list[str]:
        """Return the clients that run."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def outcome(self, nodes: int, names: Sequence[str] = ()) -> Outcome:
        """Let the clients come to their end, and judge their history.

        Args:
            nodes: How many there are.
            names: Their names, as clients report them, in the order of the faults' `node`.
        """
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            ended_early = -signal.SIGTERM  # it was still starting
            assert process.wait(10.0) in (0, ended_early), self.logs()
        events = sorted([*self.history(), *self._faults], key=lambda event: float(event["t"]))
        return outcome_of(events, nodes, names, self._longest_calls)

    def logs(self) -> str:
        """Return what the clients printed: nothing, unless one broke."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.log")))
