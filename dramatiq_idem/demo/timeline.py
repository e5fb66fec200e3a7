"""From a history to what can be drawn: who ran what from when to when, what was skipped, which node was up. Pure.

Runs are put together from lines of one thread, since a thread works on one message at a time: a claim or a start opens
a run, the next one in the thread closes it at the latest. Whatever a worker had open when it was killed ends there. A
takeover is tied to the run before it of the same payment: that is the one whose claim ran out. It has none if that
worker was killed after the nodes had granted the claim and before it was written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dramatiq_idem.demo.history import Deed, History, What
from dramatiq_idem.demo.journal import BOOTED, CHARGED, COMPLETED, RETURNED, STARTED, Entry

__all__ = ["Life", "Mark", "Run", "Span", "Timeline", "draw_up"]

TAKEOVER = "takeover"
_OPENING = ("claimed", TAKEOVER)
_STEPS = (STARTED, CHARGED, RETURNED, COMPLETED, "givenup")
_OF_NODES = ("admitted", "nodedown", "nodeup", "noderepaired", "recordsforgotten")


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


def draw_up(history: History) -> Timeline:
    """Turn what was written down into what happened."""
    lives = list(_lives(history))
    runs: list[Run] = []
    marks: list[Mark] = []
    for life in lives:
        entries = history.entries.get(life.group, ())
        threads = _threads(entries)
        runs += _runs(life, entries, threads, history.last)
        marks += _marks(life, entries, threads)
    _tie(runs)
    spans = [span for index in range(len(history.nodes)) for span in _spans(history, index)]
    return Timeline(history, lives, runs, marks, spans)


def _lives(history: History) -> Iterator[Life]:
    for deed in history.deeds:
        if deed.what is What.START_WORKER:
            kills = (end.at for end in history.deeds if end.what is What.KILL_WORKER and end.group == deed.group)
            killed = next(kills, None)
            ended = history.ended if killed is None else killed
            boots = (entry.at for entry in history.entries.get(deed.group, ()) if entry.kind == BOOTED)
            yield Life(deed.index, deed.group, deed.at, next(boots, ended), ended, killed is not None)


def _threads(entries: Sequence[Entry]) -> dict[int, int]:
    """Number the threads that work on messages."""
    of_work = (*_OPENING, STARTED, "skipped", "deferred-busy", "deferred-unavailable")
    seen = dict.fromkeys(entry.thread for entry in entries if entry.kind in of_work)
    return {thread: number for number, thread in enumerate(seen)}


def _runs(life: Life, entries: Sequence[Entry], threads: dict[int, int], last: str) -> list[Run]:
    runs: dict[int, list[Run]] = {thread: [] for thread in threads}
    for entry in entries:
        of_thread = runs.get(entry.thread, [])
        if _opens(entry, of_thread):
            number = threads[entry.thread]
            of_thread.append(Run(life.worker, life.group, number, entry.subject, entry.note, entry.kind == TAKEOVER))
        if entry.kind in (*_OPENING, *_STEPS) and of_thread and of_thread[-1].payment == entry.subject:
            of_thread[-1].times[entry.kind] = entry.at
    for of_thread in runs.values():
        for run, following in pairwise([*of_thread, None]):
            if run is not None:
                run.end, run.fate = _end(run, following, life, last)
    return [run for of_thread in runs.values() for run in of_thread]


def _opens(entry: Entry, of_thread: Sequence[Run]) -> bool:
    if entry.kind == STARTED:  # it opens a run only where no claim did: without the middleware
        return not of_thread or of_thread[-1].has_body or of_thread[-1].payment != entry.subject
    return entry.kind in _OPENING


def _end(run: Run, following: Run | None, life: Life, last: str) -> tuple[float, str]:
    if last in run.times:
        return run.times[last], "completed"
    if following is not None or "givenup" in run.times:
        return max(run.times.values()), "raised"
    return life.ended, "killed" if life.is_killed else "unfinished"


def _tie(runs: Sequence[Run]) -> None:
    latest: dict[str, Run] = {}
    for run in sorted(runs, key=lambda one: one.start):
        if run.is_takeover:
            run.predecessor = latest.get(run.payment)
        latest[run.payment] = run


def _marks(life: Life, entries: Sequence[Entry], threads: dict[int, int]) -> Iterator[Mark]:
    known = {BOOTED, *_OPENING, *_STEPS, *_OF_NODES}
    for entry in entries:
        if entry.kind not in known:
            thread = threads.get(entry.thread)
            yield Mark(entry.kind, life.worker, thread, entry.subject, entry.note, entry.at)


def _spans(history: History, index: int) -> Iterator[Span]:
    state, since = "up", history.began
    for deed in history.deeds:
        if deed.index != index or deed.what not in (What.KILL_NODE, What.RESTART_NODE):
            continue
        yield Span(index, state, since, deed.at)
        state, since = "down", deed.at
        if deed.what is What.RESTART_NODE:
            votes = _votes_from(history, index, deed)
            yield Span(index, "waiting", deed.at, votes)
            state, since = "up", votes
    yield Span(index, state, since, history.ended)


def _votes_from(history: History, index: int, restart: Deed) -> float:
    """Return when a restarted node voted again, as the first worker heard; the end if none did."""
    found = (
        entry.at + int(entry.note) / 1000
        for entries in history.entries.values()
        for entry in entries
        if entry.kind == "admitted" and entry.subject == history.nodes[index] and entry.at > restart.at
    )
    return min([*found, history.ended])
