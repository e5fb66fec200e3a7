"""What workers did, in one file per worker: a line is with the kernel before its job goes on, so a SIGKILL loses none.

A line is "<kind> <payment> <seconds> <thread> <note>", all without spaces. The job writes `STARTED`, `CHARGED` and
`RETURNED`, the middleware's observer the others; an event about a node has the node's name in place of the payment. The
seconds are those of a clock that all processes of a machine share, the note is the message's id.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dramatiq_idem import events
from redlock import Admitted, Event

__all__ = [
    "BOOTED",
    "CHARGED",
    "COMPLETED",
    "RETURNED",
    "STARTED",
    "Entry",
    "Journal",
    "JournalReader",
    "kind_of",
]

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

    def write(self, kind: str, payment: str = "-", note: str = "-") -> None:
        """Add a line; with one system call, so that lines of threads do not mix."""
        line = f"{kind} {payment} {time.monotonic():.6f} {threading.get_ident()} {note}\n"
        os.write(self._file, line.encode())

    def observe(self, event: Event) -> None:
        """Write an event of the middleware down."""
        match event:
            case events.MessageEvent():
                self.write(kind_of(event), (event.key or "-").rpartition(":")[2], event.message_id)
            case Admitted():
                self.write(kind_of(event), event.node, str(event.wait_ms))
            case _:
                self.write(kind_of(event), getattr(event, "node", "-"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a journal.

    Args:
        kind: What happened.
        subject: The payment, or the node, or "-".
        at: When, by `time.monotonic`.
        thread: Where: an identity that is unique in its process.
        note: The message's id; of a node that was admitted, the milliseconds until it votes; or "-".
    """

    kind: str
    subject: str
    at: float
    thread: int
    note: str


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
            lines.update((kind, payment) for kind, payment, *_ in map(str.split, text.decode().splitlines()))

    def entries(self) -> dict[int, list[Entry]]:
        """Return all whole lines, in the order of writing, by worker."""
        return {int(path.stem): list(_entries(path)) for path in self._directory.glob("*.journal")}

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


def _entries(path: Path) -> Iterator[Entry]:
    for line in path.read_text().rpartition("\n")[0].splitlines():
        kind, subject, at, thread, note = line.split()
        yield Entry(kind, subject, float(at), int(thread), note)
