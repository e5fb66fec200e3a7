"""From a timeline to a figure as plotly.js takes it: lanes from top to bottom, seconds from left to right. Pure.

Each trace says in its `meta` what it draws, for whoever counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dramatiq_idem.demo.history import Deed, What
from dramatiq_idem.demo.jobs import KEY
from dramatiq_idem.demo.journal import CHARGED, RETURNED
from dramatiq_idem.demo.timeline import Mark, Run, Timeline

__all__ = ["figure", "per_bar"]

_MOST_BARS: Final = 15_000
"""Above it runs are put together: each costs the file 120 bytes, and the browser an element."""
_LANE: Final = 25
"""Height in pixels."""
_TEAL, _AMBER, _RED, _GREY, _BLUE, _VIOLET = "#2a9d8f", "#f0a202", "#d62828", "#8d99ae", "#1d3557", "#9d4edd"
_TIMES: Final = "%{base:.4f} s to %{x:.4f} s"
_ABOUT: Final = f"{KEY.replace('{event[payment]}', '%{customdata[0]}')}<br>message %{{customdata[1]}}"

_RUNS: Final = {
    "completed": ("run, completed", _TEAL),
    "takeover": ("takeover, completed", _AMBER),
    "killed": ("run, cut off by SIGKILL", _RED),
    "raised": ("run, raised", _GREY),
    "unfinished": ("run, under way at the end", _GREY),
}
_MARKS: Final = {
    "skipped": ("duplicate, skipped", _BLUE, "line-ns"),
    "deferred-busy": ("duplicate, put back: busy", _VIOLET, "line-ns"),
    "deferred-unavailable": ("put back: no quorum", _RED, "line-ns"),
}
_NODES: Final = {
    "up": ("node, voting", "#a8dadc"),
    "down": ("node, down", _RED),
    "waiting": ("node, back, not voting yet", "#ffd166"),
}

Trace = dict[str, Any]


def per_bar(timeline: Timeline) -> int:
    """Return how many undisturbed runs one bar stands for."""
    return -(-len(timeline.runs) // _MOST_BARS) or 1


def figure(timeline: Timeline) -> dict[str, Any]:
    """Return data and layout."""
    began = timeline.history.began
    lanes = _lanes(timeline)
    traces = [*_processes(timeline, began), *_runs(timeline, began), *_marks(timeline, began)]
    traces += [_links(timeline, began), *_deeds(timeline, began)]
    return {"data": traces, "layout": _layout(timeline, lanes)}


def _lanes(timeline: Timeline) -> list[str]:
    """Return the lanes' names from top to bottom; blank ones keep groups apart."""
    lanes = [_node(index) for index in range(len(timeline.history.nodes))]
    for worker in sorted({life.worker for life in timeline.lives}):
        mine: Iterable[Run | Mark] = (*timeline.runs, *timeline.marks)
        last = max((one.thread for one in mine if one.worker == worker and one.thread is not None), default=-1)
        lanes += [" " * (worker + 1), _thread(worker, None), *(_thread(worker, thread) for thread in range(last + 1))]
    return lanes


def _node(index: int) -> str:
    return f"node {index + 1}"


def _thread(worker: int, thread: int | None) -> str:
    return f"worker {worker + 1}" + ("" if thread is None else f", thread {thread + 1}")


def _bars(
    what: str, name: str, color: str, rows: Sequence[tuple[str, float, float, Sequence[Any]]], hover: str
) -> Trace:
    """Return a trace of bars: (lane, start, end, what the text needs)."""
    return {
        "type": "bar",
        "orientation": "h",
        "meta": what,
        "name": name,
        "y": [row[0] for row in rows],
        "base": [round(row[1], 4) for row in rows],
        "x": [round(row[2] - row[1], 4) for row in rows],
        "customdata": [row[3] for row in rows],
        "width": 0.8,
        "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": f"<b>{name}</b><br>%{{y}}<br>{hover}<extra></extra>",
    }


def _processes(timeline: Timeline, began: float) -> list[Trace]:
    traces = []
    for state, (name, color) in _NODES.items():
        rows = [
            (_node(span.node), span.start - began, span.end - began, [timeline.history.nodes[span.node]])
            for span in timeline.spans
            if span.state == state
        ]
        traces.append(_bars(f"node {state}", name, color, rows, f"%{{customdata[0]}}<br>{_TIMES}"))
    boots, lives = [], []
    for life in timeline.lives:
        lane, about = _thread(life.worker, None), [life.group]
        boots.append((lane, life.began - began, life.booted - began, about))
        lives.append((lane, life.booted - began, life.ended - began, about))
    hover = f"process group %{{customdata[0]}}<br>{_TIMES}"
    return [
        *traces,
        _bars("worker boots", "worker, starting", "#dee2e6", boots, hover),
        _bars("worker", "worker, running", "#a3b1c6", lives, hover),
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
        traces.append(_bars(f"runs {sort}", name, color, rows, hover + ("<br>%{customdata[4]}" if size > 1 else "")))
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
    return _thread(first.worker, first.thread), first.start - began, last.end - began, about


def _time(run: Run, step: str, began: float) -> str:
    return f"{run.times[step] - began:.4f} s" if step in run.times else "never noted"


def _points(
    what: str, name: str, marker: Mapping[str, Any], rows: Sequence[tuple[str, float, Sequence[Any]]], hover: str
) -> Trace:
    """Return a trace of points: (lane, when, what the text needs)."""
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": what,
        "name": name,
        "y": [row[0] for row in rows],
        "x": [round(row[1], 4) for row in rows],
        "customdata": [row[2] for row in rows],
        "marker": marker,
        "hovertemplate": f"<b>{name}</b><br>%{{y}}<br>{hover}<br>%{{x:.4f}} s<extra></extra>",
    }


def _marks(timeline: Timeline, began: float) -> list[Trace]:
    traces = []
    rare = {mark.kind: (mark.kind, "#000000", "asterisk") for mark in timeline.marks if mark.kind not in _MARKS}
    for kind, (name, color, symbol) in (_MARKS | rare).items():
        rows = [
            (_thread(mark.worker, mark.thread), mark.at - began, [mark.payment, mark.message_id])
            for mark in timeline.marks
            if mark.kind == kind
        ][:: per_bar(timeline) if kind in _MARKS else 1]
        marker = {"symbol": symbol, "size": 9, "color": color, "line": {"width": 1.5, "color": color}}
        traces.append(_points(f"marks {kind}", name, marker, rows, _ABOUT))
    for kind, color, symbol, runs in (
        ("cut off", _RED, "x", [run for run in timeline.runs if run.fate == "killed"]),
        ("takeover", _AMBER, "diamond", [run for run in timeline.runs if run.is_takeover]),
    ):
        rows = [
            (
                _thread(run.worker, run.thread),
                (run.end if kind == "cut off" else run.start) - began,
                [run.payment, run.message_id],
            )
            for run in runs
        ]
        marker = {"symbol": symbol, "size": 9, "color": color, "line": {"width": 1, "color": "#ffffff"}}
        traces.append(_points(f"marks {kind}", kind, marker, rows, _ABOUT))
    return traces


def _links(timeline: Timeline, began: float) -> Trace:
    """Return the lines from where runs were cut off to where they were taken over."""
    x: list[float | None] = []
    y: list[str | None] = []
    for run in timeline.runs:
        if run.predecessor is not None:
            x += [round(run.predecessor.end - began, 4), round(run.start - began, 4), None]
            y += [_thread(one.worker, one.thread) for one in (run.predecessor, run)] + [None]
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": "links",
        "name": "from the cut-off run to its takeover",
        "x": x,
        "y": y,
        "line": {"color": _AMBER, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _deeds(timeline: Timeline, began: float) -> list[Trace]:
    kills = {What.KILL_NODE, What.KILL_WORKER}
    traces = []
    for what, name, color, symbol, is_kill in (
        ("kills", "SIGKILL", _RED, "x", True),
        ("starts", "started, or back", _TEAL, "triangle-right", False),
    ):
        deeds = [deed for deed in timeline.history.deeds if (deed.what in kills) is is_kill]
        rows = [(_lane(deed), deed.at - began, [deed.text]) for deed in deeds]
        marker = {"symbol": symbol, "size": 15, "color": color, "line": {"width": 1.5, "color": "#ffffff"}}
        traces.append(_points(what, name, marker, rows, "%{customdata[0]}"))
    return traces


def _lane(deed: Deed) -> str:
    is_node = deed.what in {What.KILL_NODE, What.RESTART_NODE}
    return _node(deed.index) if is_node else _thread(deed.index, None)


def _layout(timeline: Timeline, lanes: Sequence[str]) -> dict[str, Any]:
    history = timeline.history
    kills = [deed for deed in history.deeds if deed.what in {What.KILL_NODE, What.KILL_WORKER}]
    at = {"xref": "x", "yref": "paper"}
    line = {"type": "line", "y0": 0, "y1": 1, "line": {"color": _RED, "width": 1, "dash": "dash"}, "opacity": 0.5}
    label = {"y": 1, "yanchor": "bottom", "showarrow": False, "font": {"color": _RED, "size": 12}}
    seconds = [round(deed.at - history.began, 4) for deed in kills]
    return {
        "barmode": "overlay",
        "height": _LANE * len(lanes) + 150,
        "margin": {"l": 130, "r": 20, "t": 30, "b": 110},
        "hovermode": "closest",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#222222"},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "xaxis": {
            "title": {"text": "seconds since the start", "standoff": 5},
            "range": [0, round(history.ended - history.began, 2)],
            "gridcolor": "#eeeeee",
            "zeroline": False,
        },
        "yaxis": {
            "type": "category",
            "categoryarray": list(lanes),
            "range": [len(lanes) - 0.5, -0.5],
            "fixedrange": True,
            "showgrid": False,
            "tickmode": "array",
            "tickvals": [lane for lane in lanes if lane.strip()],
        },
        "shapes": [at | line | {"x0": x, "x1": x} for x in seconds],
        "annotations": [
            at | label | {"x": x, "text": f"{_lane(deed)} killed"} for x, deed in zip(seconds, kills, strict=True)
        ],
    }
