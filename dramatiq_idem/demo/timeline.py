"""What can be drawn of a run: processes and what they ran, what was not run, when nodes were up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dramatiq_idem.demo.history import History
from dramatiq_idem.demo.journal import STARTED

__all__ = ["Life", "Mark", "Run", "Span", "Timeline"]


@dataclass(frozen=True, slots=True)
class Life:
    """One worker process.

    Args:
        worker: Index of its worker, which has another life after each kill.
        group: Its process group.
        began: When it was started.
        booted: When it was ready to work; its end if it never was.
        ended: When it was killed, or the run was over.
        is_killed: Which of the two.
    """

    worker: int
    group: int
    began: float
    booted: float
    ended: float
    is_killed: bool


@dataclass(slots=True)
class Run:
    """One claim and what came of it.

    Args:
        worker: Index of the worker.
        group: Its process group at the time.
        thread: Number of the thread in its process, from 0 in the order in which they had something to do.
        payment: What for.
        message_id: Which delivery.
        is_takeover: Whether it took over the claim of a worker that had died.
        times: When it was "claimed" (or "takeover"), "started", "charged", "returned", "completed", as far as it came.
        end: When it was over.
        fate: "completed", "killed", "raised", or "unfinished" when the demo was over.
        predecessor: The run that a takeover follows.
        sequel: What became of the payment after a kill, "takeover", "again" (a run of its own) or "skipped", and
            when. If skipped, its completion had been recorded before the kill, and was not yet written down.
    """

    worker: int
    group: int
    thread: int
    payment: str
    message_id: str
    is_takeover: bool
    times: dict[str, float] = field(default_factory=dict)
    end: float = 0.0
    fate: str = ""
    predecessor: Run | None = None
    sequel: tuple[str, float] | None = None

    @property
    def start(self) -> float:
        """When the body began; when the claim was granted if it never did."""
        return self.times.get(STARTED) or min(self.times.values())

    @property
    def has_body(self) -> bool:
        """Whether the body began."""
        return STARTED in self.times


@dataclass(frozen=True, slots=True)
class Mark:
    """A delivery that was not run, or another event about one.

    Args:
        kind: As in the journal: "skipped", "deferred-busy", "deferred-unavailable", or a rarer one.
        worker: Index of the worker.
        thread: Number of the thread; None if it is not one that works on messages.
        payment: Which one, or "-".
        message_id: Which delivery, or "-".
        at: When.
    """

    kind: str
    worker: int
    thread: int | None
    payment: str
    message_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Span:
    """A time during which a node was "up", "down", or "waiting": back, but not voting yet.

    Args:
        node: Its index.
        state: One of the three.
        start: From when.
        end: Until when.
    """

    node: int
    state: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that is drawn; times as in the history."""

    history: History
    lives: Sequence[Life]
    runs: Sequence[Run]
    marks: Sequence[Mark]
    spans: Sequence[Span]
