"""One client of the chaos tests: takes locks, looks at them, writes under them, gives them back; until SIGTERM.

SIGUSR1 asks it to stop itself (SIGSTOP) the next time that it is between the check of a lease and the write under it.

python -m tests.chaos.client FOLDER NAME — reads FOLDER/settings.json, writes FOLDER/NAME.jsonl (see history.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import tenacity
from redis.backoff import NoBackoff
from redis.retry import Retry

from redlock import (
    Admitted,
    Event,
    FencingUnavailableError,
    Lease,
    LeaseLostError,
    LockHeldError,
    NodeDown,
    QuorumUnreachableError,
    Redlock,
    clock,
)

_LOOKS, _EXTENSIONS, _LONG = 0.25, 0.15, 0.04
"""Shares of the leases that are looked at, extended, or held to their end."""
_TICK, _STALL = 0.01, 0.03
"""Seconds between two looks at the clock, and from how many on it is said that this process stood still."""


class Client:
    """See the module."""

    def __init__(self, folder: Path, name: str) -> None:
        self._settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self._folder = folder
        self._name = name
        self._random = random.Random(f"{self._settings['seed']} {name}")
        self._file = (folder / f"{name}.jsonl").open("a", buffering=1)
        self._running = True
        self._stops_itself = False
        self._redlock = Redlock(
            self._settings["urls"],
            self._settings["ttl"],
            observer=self._observe,
            pause=tenacity.wait_random(0.005, 0.03),
            **self._settings["options"],
        )
        options = {"socket_timeout": 0.05, "socket_connect_timeout": 0.05, "retry": Retry(NoBackoff(), 0)}
        self._nodes = [
            redis.Redis.from_url(url, decode_responses=True, **options) for url in self._settings["looks_at"]
        ]

    def run(self) -> None:
        """Go on until SIGTERM."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGUSR1, self._stop_itself)
        threading.Thread(target=self._watch_for_stalls, daemon=True).start()
        while self._running:
            resource = self._random.choice(self._settings["resources"])
            invoked = clock()
            try:
                with self._timed("acquire"):
                    lease = self._redlock.acquire(resource, wait=self._settings["ttl"])
            except (LockHeldError, QuorumUnreachableError) as error:
                self._note("refused", error=type(error).__name__)
                continue
            now = clock()
            fence = None
            with contextlib.suppress(FencingUnavailableError):
                fence = lease.fencing_token
            self._note(
                "acquired",
                t=now,
                resource=resource,
                token=lease.token,
                fence=fence,
                invoked=invoked,
                until=lease.term.valid_until,
            )
            self._hold(lease, fence)
            self._note("releasing", token=lease.token)
            with self._timed("release"):
                is_ours = lease.release()
            self._note("released", token=lease.token, ok=is_ours)
        self._redlock.close()

    def _hold(self, lease: Lease, fence: int | None) -> None:
        counter = self._folder / f"counter-{lease.resource}"
        seen = int(counter.read_text() or 0)
        is_long = self._random.random() < self._settings.get("long", _LONG)
        time.sleep(max(0.0, lease.remaining() - 0.005) if is_long else self._random.uniform(0.0, 0.02))
        if self._random.random() < _EXTENSIONS:
            with self._timed("extend"):
                is_extended = lease.extend()
            if is_extended:
                self._note("extended", token=lease.token, until=lease.term.valid_until)
        if self._random.random() < _LOOKS:
            self._look(lease)
        if is_long or lease.remaining() < 0.15:  # a store without fencing needs some room between check and write
            return
        try:
            lease.check()
        except LeaseLostError:
            self._note("lost", token=lease.token)
            return
        if self._stops_itself:
            self._stops_itself = False
            self._note("stopping", token=lease.token)
            os.kill(os.getpid(), signal.SIGSTOP)
        new = self._folder / f"counter-{lease.resource}-{self._name}"
        new.write_text(str(seen + 1))
        new.replace(counter)
        self._note("wrote", resource=lease.resource, token=lease.token, value=seen + 1)
        if fence is not None:
            self._write_fenced(lease.resource, lease.token, fence)

    def _write_fenced(self, resource: str, token: str, fence: int) -> None:
        """Write to a store that refuses whoever has a smaller token than one that was there."""
        with (self._folder / f"ledger-{resource}").open("r+") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)
            largest = int(ledger.read() or 0)
            if fence >= largest:
                ledger.seek(0)
                ledger.write(str(fence))
            self._note("fenced", resource=resource, token=token, fence=fence, accepted=fence >= largest)

    def _look(self, lease: Lease) -> None:
        began = clock()
        mine = away = 0
        for node in self._nodes:
            try:
                # an extension that counts on the key puts a mark behind the token
                mine += (node.get(f"redlock:lock:{lease.resource}") or "").removesuffix("+") == lease.token
            except (redis.RedisError, OSError):  # noqa: PERF203 - each node answers for itself
                away += 1
        self._note("looked", token=lease.token, began=began, mine=mine, away=away)

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = clock()
        try:
            yield
        finally:
            self._note("called", what=what, began=began)

    def _watch_for_stalls(self) -> None:
        """Note when nothing in this process ran: it, or the machine, was stopped or had too much to do."""
        while self._running:
            began = clock()
            time.sleep(_TICK)
            if clock() - began > _STALL:
                self._note("stalled", began=began)

    def _observe(self, event: Event) -> None:
        if isinstance(event, NodeDown):
            self._note("down", node=event.node, cause=event.cause)
        elif isinstance(event, Admitted):
            self._note("admitted", node=event.node, reason=event.reason)

    def _note(self, op: str, **values: Any) -> None:
        with contextlib.suppress(ValueError):  # closed at exit, while a thread still tells something
            self._file.write(json.dumps({"t": clock(), "client": self._name, "op": op} | values) + "\n")

    def _stop(self, *_: object) -> None:
        self._running = False

    def _stop_itself(self, *_: object) -> None:
        self._stops_itself = True


if __name__ == "__main__":
    socket.setdefaulttimeout(5.0)
    Client(Path(sys.argv[1]), sys.argv[2]).run()
