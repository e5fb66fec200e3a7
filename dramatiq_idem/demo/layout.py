"""How the picture is laid out, as plotly.js takes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dramatiq_idem.demo.history import KILLS
from dramatiq_idem.demo.timeline import Mark, Run, Timeline
from dramatiq_idem.demo.traces import RED, deed_lane, node_lane, worker_lane

__all__ = ["layout"]

_LANE: Final = 22
"""Height in pixels."""


def _lanes(timeline: Timeline) -> list[str]:
    """Return the lanes' names from top to bottom; blank ones keep groups apart."""
    lanes = [node_lane(index) for index in range(len(timeline.history.nodes))]
    for worker in sorted({life.worker for life in timeline.lives}):
        mine: Iterable[Run | Mark] = (*timeline.runs, *timeline.marks)
        last = max((one.thread for one in mine if one.worker == worker and one.thread is not None), default=-1)
        lanes += [
            " " * (worker + 1),
            worker_lane(worker, None),
            *(worker_lane(worker, thread) for thread in range(last + 1)),
        ]
    return lanes


def layout(timeline: Timeline) -> dict[str, Any]:
    """Return the layout: lanes, legend, and a line through all lanes at each kill."""
    lanes = _lanes(timeline)
    history = timeline.history
    kills = [deed for deed in history.deeds if deed.what in KILLS]
    at = {"xref": "x", "yref": "paper"}
    line = {"type": "line", "y0": 0, "y1": 1, "line": {"color": RED, "width": 1, "dash": "dash"}, "opacity": 0.5}
    label = {"y": 1, "yanchor": "bottom", "showarrow": False, "font": {"color": RED, "size": 12}}
    seconds = [round(deed.at - history.began, 4) for deed in kills]
    return {
        "barmode": "overlay",
        "height": _LANE * len(lanes) + 160,
        "margin": {"l": 135, "r": 20, "t": 42, "b": 105},
        "hovermode": "closest",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#222222"},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "xaxis": {
            "ticksuffix": " s",
            "range": [0, round(history.ended - history.began, 2)],
            "gridcolor": "#eeeeee",
            "zeroline": False,
        },
        "yaxis": {
            "type": "category",
            "categoryarray": lanes,
            "range": [len(lanes) - 0.5, -0.5],
            "fixedrange": True,
            "showgrid": False,
            "ticklabelstandoff": 6,
            "tickmode": "array",
            "tickvals": [lane for lane in lanes if lane.strip()],
        },
        "shapes": [at | line | {"x0": x, "x1": x} for x in seconds],
        "annotations": [
            # by turns higher and lower: two kills may be close
            at | label | {"x": x, "yshift": 15 * (number % 2), "text": f"{deed_lane(deed)} killed"}
            for number, (x, deed) in enumerate(zip(seconds, kills, strict=True))
        ],
    }
