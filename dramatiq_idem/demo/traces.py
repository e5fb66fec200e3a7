"""What a figure is made of, as plotly.js takes it: lanes, and traces of bars, points and lines in them.

Each trace says in its `meta` what it draws, for whoever counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dramatiq_idem.demo.history import Deed, What

__all__ = ["RED", "Trace", "bars", "deed_lane", "lines", "node_lane", "points", "worker_lane"]

RED: Final = "#d62828"
"""What was killed."""

Trace: TypeAlias = dict[str, Any]


def node_lane(index: int) -> str:
    """Return the name of a node's lane."""
    return f"node {index + 1}"


def worker_lane(worker: int, thread: int | None) -> str:
    """Return the name of a thread's lane, or of its whole process."""
    return f"worker {worker + 1}" + ("" if thread is None else f", thread {thread + 1}")


def deed_lane(deed: Deed) -> str:
    """Return the name of the lane of whatever it was done to."""
    is_node = deed.what in {What.KILL_NODE, What.RESTART_NODE}
    return node_lane(deed.index) if is_node else worker_lane(deed.index, None)


def bars(
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


def points(
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


def lines(what: str, name: str, color: str, pairs: Iterable[tuple[tuple[str, float], tuple[str, float]]]) -> Trace:
    """Return a trace of dotted lines, each from one (lane, when) to another."""
    ends = [end for pair in pairs for end in (*pair, (None, None))]  # nothing: there the pen is lifted
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": what,
        "name": name,
        "y": [lane for lane, _ in ends],
        "x": [None if at is None else round(at, 4) for _, at in ends],
        "line": {"color": color, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
