"""From a timeline to a figure as plotly.js takes it: lanes from top to bottom, seconds from left to right. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from dramatiq_idem.demo.history import KILLS
from dramatiq_idem.demo.jobs import KEY
from dramatiq_idem.demo.journal import CHARGED, RETURNED
from dramatiq_idem.demo.layout import layout
from dramatiq_idem.demo.timeline import Run, Timeline
from dramatiq_idem.demo.traces import RED, Trace, bars, deed_lane, lines, node_lane, points, worker_lane

__all__ = ["figure", "per_bar"]

_MOST_BARS: Final = 15_000
"""Above it runs are put together: each costs the file 120 bytes, and the browser an element."""
_TEAL, _AMBER, _GREY, _BLUE, _VIOLET = "#2a9d8f", "#f0a202", "#8d99ae", "#1d3557", "#9d4edd"
_TIMES: Final = "%{base:.4f} s to %{x:.4f} s"
_ABOUT: Final = f"{KEY.replace('{event[payment]}', '%{customdata[0]}')}<br>message %{{customdata[1]}}"

_RUNS: Final = {
    "completed": ("run, completed", _TEAL),
    "takeover": ("takeover, completed", _AMBER),
    "killed": ("run, cut off by SIGKILL", RED),
    "raised": ("run, raised", _GREY),
    "unfinished": ("run, under way at the end", _GREY),
}
_MARKS: Final = {
    "skipped": ("duplicate, skipped", _BLUE, "line-ns"),
    "deferred-busy": ("duplicate, put back: busy", _VIOLET, "line-ns"),
    "deferred-unavailable": ("put back: no quorum", RED, "line-ns"),
}
_NODES: Final = {
    "up": ("node, voting", "#a8dadc"),
    "down": ("node, down", RED),
    "waiting": ("node, back, not voting yet", "#ffd166"),
}
_SEQUELS: Final = {
    "takeover": "taken over",
    "again": "run again",
    "skipped": "its completion had been recorded; redelivery skipped",
}


def per_bar(timeline: Timeline) -> int:
    """Return how many undisturbed runs one bar stands for."""
    return -(-len(timeline.runs) // _MOST_BARS) or 1


def figure(timeline: Timeline) -> dict[str, Any]:
    """Return data and layout."""
    began = timeline.history.began
    traces = [*_processes(timeline, began), *_runs(timeline, began), *_marks(timeline, began)]
    traces += [_links(timeline, began), *_deeds(timeline, began)]
    return {"data": traces, "layout": layout(timeline)}


def _processes(timeline: Timeline, began: float) -> list[Trace]:
    traces = []
    for state, (name, color) in _NODES.items():
        rows = [
            (node_lane(span.node), span.start - began, span.end - began, [timeline.history.nodes[span.node]])
            for span in timeline.spans
            if span.state == state
        ]
        traces.append(bars(f"node {state}", name, color, rows, f"%{{customdata[0]}}<br>{_TIMES}"))
    boots, lives = [], []
    for life in timeline.lives:
        lane, about = worker_lane(life.worker, None), [life.group]
        boots.append((lane, life.began - began, life.booted - began, about))
        lives.append((lane, life.booted - began, life.ended - began, about))
    hover = f"process group %{{customdata[0]}}<br>{_TIMES}"
    return [
        *traces,
        bars("worker boots", "worker, starting", "#dee2e6", boots, hover),
        bars("worker", "worker, running", "#a3b1c6", lives, hover),
    ]


def _runs(timeline: Timeline, began: float) -> list[Trace]:
    sorts: dict[str, list[Run]] = {sort: [] for sort in _RUNS}
    for run in timeline.runs:
        if run.has_body:
            sorts["takeover" if run.is_takeover and run.fate == "completed" else run.fate].append(run)
    traces = []
    for sort, (name, color) in _RUNS.items():
        size = per_bar(timeline) if sort == "completed" else 1
        rows = [_row(group, began) for group in _grouped(sorts[sort], size)]
        hover = f"{_ABOUT}<br>{_TIMES}<br>charged %{{customdata[2]}}, returned %{{customdata[3]}}"
        has_more = size > 1 or sort == "killed"
        traces.append(bars(f"runs {sort}", name, color, rows, hover + ("<br>%{customdata[4]}" if has_more else "")))
    return traces


def _grouped(runs: Sequence[Run], size: int) -> list[list[Run]]:
    """Put runs that follow each other in one thread of one process together, as many as given."""
    by_lane: dict[tuple[int, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        by_lane[run.worker, run.group, run.thread].append(run)
    return [lane[at : at + size] for lane in by_lane.values() for at in range(0, len(lane), size)]


def _row(group: Sequence[Run], began: float) -> tuple[str, float, float, list[Any]]:
    first, last = group[0], group[-1]
    about: list[Any] = [first.payment, first.message_id, _time(first, CHARGED, began), _time(first, RETURNED, began)]
    if len(group) > 1:
        about.append(f"and {len(group) - 1} more runs until {last.end - began:.4f} s")
    elif first.fate == "killed":
        about.append(_sequel(first, began))
    return worker_lane(first.worker, first.thread), first.start - began, last.end - began, about


def _sequel(run: Run, began: float) -> str:
    if run.sequel is None:
        return "not met again before the end"
    kind, at = run.sequel
    then = _SEQUELS[kind]
    return f"{then} at {at - began:.4f} s"


def _time(run: Run, step: str, began: float) -> str:
    return f"{run.times[step] - began:.4f} s" if step in run.times else "never noted"


def _marks(timeline: Timeline, began: float) -> list[Trace]:
    traces = []
    rare = {mark.kind: (mark.kind, "#000000", "asterisk") for mark in timeline.marks if mark.kind not in _MARKS}
    for kind, (name, color, symbol) in (_MARKS | rare).items():
        rows = [
            (worker_lane(mark.worker, mark.thread), mark.at - began, [mark.payment, mark.message_id])
            for mark in timeline.marks
            if mark.kind == kind
        ][:: per_bar(timeline) if kind in _MARKS else 1]
        marker = {"symbol": symbol, "size": 9, "color": color, "line": {"width": 1.5, "color": color}}
        traces.append(points(f"marks {kind}", name, marker, rows, _ABOUT))
    for kind, color, symbol, runs in (
        ("cut off", RED, "x", [run for run in timeline.runs if run.fate == "killed"]),
        ("takeover", _AMBER, "diamond", [run for run in timeline.runs if run.is_takeover]),
    ):
        rows = [
            (
                worker_lane(run.worker, run.thread),
                (run.end if kind == "cut off" else run.start) - began,
                [run.payment, run.message_id],
            )
            for run in runs
        ]
        marker = {"symbol": symbol, "size": 9, "color": color, "line": {"width": 1, "color": "#ffffff"}}
        traces.append(points(f"marks {kind}", kind, marker, rows, _ABOUT))
    return traces


def _links(timeline: Timeline, began: float) -> Trace:
    pairs = (
        (
            (worker_lane(run.predecessor.worker, run.predecessor.thread), run.predecessor.end - began),
            (worker_lane(run.worker, run.thread), run.start - began),
        )
        for run in timeline.runs
        if run.predecessor is not None
    )
    return lines("links", "from the cut-off run to its takeover", _AMBER, pairs)


def _deeds(timeline: Timeline, began: float) -> list[Trace]:
    traces = []
    for what, name, color, symbol, is_kill in (
        ("kills", "SIGKILL", RED, "x", True),
        ("starts", "started, or back", _TEAL, "triangle-right", False),
    ):
        deeds = [deed for deed in timeline.history.deeds if (deed.what in KILLS) is is_kill]
        rows = [(deed_lane(deed), deed.at - began, [deed.text]) for deed in deeds]
        marker = {"symbol": symbol, "size": 15, "color": color, "line": {"width": 1.5, "color": "#ffffff"}}
        traces.append(points(what, name, marker, rows, "%{customdata[0]}"))
    return traces
