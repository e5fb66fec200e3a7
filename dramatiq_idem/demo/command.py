"""The subcommand ``demo``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from rich.console import Console

from dramatiq_idem.demo import page
from dramatiq_idem.demo.display import Display
from dramatiq_idem.demo.run import Options, run
from dramatiq_idem.demo.traffic import plan_deliveries
from redlock import RedlockError

__all__ = ["demo"]


def _check_picture(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse before the demo starts what could not be drawn or written when it is over."""
    if path is not None:
        if not page.is_possible():
            raise click.ClickException("plotly is not installed; try: pip install 'dramatiq-idem[report]'")
        parent = next(folder for folder in path.resolve().parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise click.BadParameter(f"cannot write into {parent}")
    return path


@click.command()
@click.option(
    "--payments", type=click.IntRange(min=100), default=10_000, show_default=True, help="How many payments to make."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the payments and their order.")
@click.option(
    "--limit", type=click.FloatRange(min=1.0), default=120.0, show_default=True, help="Seconds to give up after."
)
@click.option(
    "--without",
    type=click.Choice(["middleware", "gateway-key"]),
    help="Leave the protection out, to see what it is for: the middleware, or the idempotency key that jobs hand to "
    "the gateway.",
)
@click.option(
    "--report",
    "picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_check_picture,
    help="Draw the run as a timeline, into this HTML file: who ran which payment when, and what was killed, taken over "
    "and skipped.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome as one JSON document on stdout, the rest on stderr."
)
def demo(payments: int, seed: int, limit: float, without: str | None, picture: Path | None, *, as_json: bool) -> None:
    """Watch duplicates being stopped while workers and a node are killed.

    Starts three nodes, a broker and two dramatiq workers on this machine, sends payments of which one in five comes
    twice, and kills with SIGKILL: a worker, a node, the other worker. Ends with status 1 if a payment was lost or
    charged twice, or if the time was up.

    In the JSON, "completed" counts payments that were charged and whose completion is recorded on a majority of the
    nodes, "lost" the other ones, and "repeated" the runs of the body beyond one for each completed payment.
    """
    deliveries = plan_deliveries(payments, seed)
    console = Console(stderr=as_json)
    try:
        with Display(console, len(deliveries), payments) as display:
            options = Options(deliveries, seed, without or "", limit, keeps_history=picture is not None)
            report, history = run(options, display)
    except RedlockError as error:
        raise click.ClickException(str(error)) from error
    display.conclude(report)
    if picture is not None and history is not None:
        page.write(picture, report, history)
        click.echo(f"A picture of it: {picture.resolve()}", err=as_json)
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    if not report.is_good:
        click.get_current_context().exit(1)
