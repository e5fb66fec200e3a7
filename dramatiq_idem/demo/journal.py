"""What workers did, in one file per worker: a line is with the kernel before its job goes on, so a SIGKILL loses none.

A line is "<kind> <payment>". The job writes `STARTED`, `CHARGED` and `RETURNED`, the middleware's observer the others.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

from dramatiq_idem import events
from redlock import Event

__all__ = ["BOOTED", "CHARGED", "COMPLETED", "RETURNED", "STARTED", "Journal", "JournalReader", "kind_of"]

BOOTED: Final = "booted"
STARTED: Final = "started"
CHARGED: Final = "charged"
RETURNED: Final = "returned"
COMPLETED: Final = "completed"


def kind_of(event: Event) -> str:
    """Return how an event is called in a journal."""
    match event:
        case events.Claimed() if event.takeovers:
            return "takeover"
        case events.Replayed():
            return "skipped"
        case events.Deferred():
            return f"deferred-{event.reason}"
        case _:
            return type(event).__name__.lower()


class Journal:
    """The file of this worker, named by its process group.

    Args:
        directory: Of all journals of a run.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.getpgrp()}.journal"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, payment: str = "-") -> None:
        """Add a line; with one system call, so that lines of threads do not mix."""
        os.write(self._file, f"{kind} {payment}\n".encode())

    def observe(self, event: Event) -> None:
        """Write an event of the middleware down."""
        key = event.key if isinstance(event, events.MessageEvent) else None
        self.write(kind_of(event), (key or "-").rpartition(":")[2])


class JournalReader:
    """Reads the journals of a run while they grow.

    Args:
        directory: Of all journals of the run.
    Attributes:
        lines: How often each (kind, payment) was written so far, by worker.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self.lines: dict[int, Counter[tuple[str, str]]] = {}

    def read(self) -> None:
        """Take in what was written since the last call."""
        for path in self._directory.glob("*.journal"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text, newline, _half_a_line = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(text + newline)
            lines = self.lines.setdefault(int(path.stem), Counter())
            lines.update((kind, payment) for kind, payment in map(str.split, text.decode().splitlines()))

    def payments(self, kind: str, worker: int | None = None) -> Counter[str]:
        """Return how often each payment has a line of this kind; of one worker, or of all."""
        found: Counter[str] = Counter()
        for one, lines in self.lines.items():
            if worker in (None, one):
                for (what, payment), times in lines.items():
                    if what == kind:
                        found[payment] += times
        return found

    def count(self, kind: str) -> int:
        """Return how many lines of this kind there are."""
        return sum(times for lines in self.lines.values() for (what, _), times in lines.items() if what == kind)
