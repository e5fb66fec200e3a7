"""The picture of a run: one HTML file with everything in it, which asks the network for nothing.

plotly is an extra, imported when the page is made; `is_possible` tells before.
"""

from __future__ import annotations

import html
import importlib.util
from pathlib import Path
from typing import Any, Final

from dramatiq_idem.demo.audit import Report
from dramatiq_idem.demo.display import rows
from dramatiq_idem.demo.figure import figure, per_bar
from dramatiq_idem.demo.history import History
from dramatiq_idem.demo.reconstruction import reconstruct
from dramatiq_idem.demo.timeline import Timeline

__all__ = ["is_possible", "page", "write"]

_CONFIG: Final[dict[str, Any]] = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly.js 4 has it on by default
    "scrollZoom": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}
# The policy is a second lock: this plotly.js asks for nothing, and another could not.
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'">
<link rel="icon" href="data:,">
<title>dramatiq-idem demo</title>
<style>
body {{ font: 14px/1.35 system-ui, sans-serif; color: #222; margin: 18px 24px; }}
h1 {{ font-size: 20px; margin: 0 0 2px; }}
p {{ margin: 0 0 10px; color: #555; }}
dl {{ display: grid; grid-template-columns: repeat(6, 1fr); gap: 6px; margin: 10px 0; }}
dl div {{ background: #f4f6f8; border-radius: 5px; padding: 5px 10px; }}
dt {{ color: #555; }}
dd {{ margin: 0; font-size: 19px; font-weight: 600; }}
dd small {{ display: block; font-size: 11px; font-weight: 400; color: #777; }}
.wrong {{ background: #d62828; }}
.wrong * {{ color: #fff !important; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<dl>
{figures}
</dl>
{plot}
</body>
</html>
"""


def is_possible() -> bool:
    """Tell whether plotly is installed."""
    return importlib.util.find_spec("plotly") is not None


def write(path: Path, report: Report, history: History) -> None:
    """Make the picture and write it, into a new directory if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report, reconstruct(history)), encoding="utf-8")


def page(report: Report, timeline: Timeline) -> str:
    """Return the whole page."""
    import plotly.io

    plot = plotly.io.to_html(
        figure(timeline),
        config=_CONFIG,
        include_plotlyjs=True,  # inlined: 5 MB
        include_mathjax=False,
        full_html=False,
        div_id="timeline",
        validate=False,  # it would import all of plotly for what a test has seen
    )
    about = " ".join(html.escape(sentence) for sentence in _about(report, timeline))
    return _PAGE.format(title=html.escape(_title(report)), about=about, figures=_figures(report), plot=plot)


def _title(report: Report) -> str:
    without = f" without the {report.without}" if report.without else ""
    time_is_up = "" if report.finished else "; the time was up"
    return (
        f"dramatiq-idem demo{without}: {report.distinct:,} payments in {report.sent:,} messages, "
        f"{report.lost:,} lost, {report.charged_twice:,} charged twice{time_is_up}"
    )


def _about(report: Report, timeline: Timeline) -> list[str]:
    size = per_bar(timeline)
    drawn = f"Each of the {report.started:,} runs is a bar of its own."
    if size > 1:
        drawn = (
            f"AGGREGATED: of {report.started:,} runs, up to {size} undisturbed ones that follow each other in a thread "
            f"are one bar, and one skipped or put-back duplicate in {size} is marked; all kills, cut-off runs and "
            "takeovers are."
        )
    return [drawn, "Drag or scroll to zoom in, double-click to go back; hover for key, message and times."]


def _figures(report: Report) -> str:
    cells = [(name, f"{count:,}", note, is_wrong and count > 0) for name, count, note, is_wrong in rows(report)]
    cells.append(("seconds", f"{report.seconds:.1f}", "from the first process to the audit", not report.finished))
    return "\n".join(
        f"<div{' class=wrong' if is_wrong else ''}><dt>{html.escape(name)}</dt>"
        f"<dd>{count}<small>{html.escape(note)}</small></dd></div>"
        for name, count, note, is_wrong in cells
    )
