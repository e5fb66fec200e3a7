"""From a history to its timeline. Pure.

Runs are put together from lines of one thread, since a thread works on one message at a time: a claim or a start opens
a run, the next one in the thread closes it at the latest. Whatever a worker had open when it was killed ends there. A
takeover is tied to the run before it of the same payment: that is the one whose claim ran out. It has none if that
worker was killed after the nodes had granted the claim and before it was written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dramatiq_idem.demo.history import Deed, History, What
from dramatiq_idem.demo.journal import BOOTED, CHARGED, COMPLETED, RETURNED, STARTED, Entry
from dramatiq_idem.demo.timeline import Life, Mark, Run, Span, Timeline

__all__ = ["reconstruct"]

_TAKEOVER = "takeover"
_OPENING = ("claimed", _TAKEOVER)
_STEPS = (STARTED, CHARGED, RETURNED, COMPLETED, "givenup")
_OF_NODES = ("admitted", "nodedown", "nodeup", "noderepaired", "recordsforgotten")


def reconstruct(history: History) -> Timeline:
    """Turn what was written down into what happened."""
    lives = list(_lives(history))
    runs: list[Run] = []
    marks: list[Mark] = []
    for life in lives:
        entries = history.entries.get(life.group, ())
        threads = _threads(entries)
        runs += _runs(life, entries, threads, history.last)
        marks += _marks(life, entries, threads)
    _tie(runs, marks)
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
            of_thread.append(Run(life.worker, life.group, number, entry.subject, entry.note, entry.kind == _TAKEOVER))
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


def _tie(runs: Sequence[Run], marks: Sequence[Mark]) -> None:
    """Find for each takeover the run before it, and for each run that was killed what came next."""
    latest: dict[str, Run] = {}
    for run in sorted(runs, key=lambda one: one.start):
        before = latest.get(run.payment)
        if run.is_takeover and before is not None:
            run.predecessor = before
        if before is not None and before.fate == "killed" and run.start > before.end:
            before.sequel = _TAKEOVER if run.is_takeover else "again", run.start
        latest[run.payment] = run
    killed = {run.payment: run for run in runs if run.fate == "killed" and run.sequel is None}
    for mark in sorted(marks, key=lambda one: one.at):
        run_before = killed.get(mark.payment)
        if mark.kind == "skipped" and run_before is not None and mark.at > run_before.end:
            run_before.sequel = run_before.sequel or (mark.kind, mark.at)


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
