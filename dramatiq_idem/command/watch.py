"""The subcommand ``watch``: nodes and records as they are, again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from dramatiq_idem.command.counting import Counter, Counts
from dramatiq_idem.command.options import Target, on_nodes
from dramatiq_idem.command.outcome import OK, STATUSES
from dramatiq_idem.command.printing import cell, complain, new_console, new_table, say, span
from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.sampling import WINDOW, Sample
from dramatiq_idem.command.ticking import Pulse, Tick, Ticker
from dramatiq_idem.command.view import Kind

__all__ = ["watch"]


@click.command(epilog=STATUSES)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="One look.")
@click.option(
    "--sample",
    "most",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Keys that are looked at for one sample, about.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="Where a worker serves its Prometheus metrics (Dramatiq's port is 9191); once for each machine.",
)
@on_nodes
def watch(target: Target, interval: float, most: int, metrics: tuple[str, ...], *, once: bool) -> int:
    """Watch the nodes and the records; Ctrl-C ends it, with status 0.

    Per node: whether it answers, the latency of one round trip, commands per second as the server counts them (ours
    included), script calls per second (an undisturbed job is two), and what its marker lets it do. Of the records: a
    sample by SCAN, as one node has them; it goes on where the last one ended, and where it is not the whole, counts
    are of the sample and rates are estimates, with a "~". The nodes count no claims, so the rates are of keys that
    were claimed for the first time in the last ten seconds, and of those of them that are completed. How long a key
    has been running counts from its first claim, which is an upper bound ("at most") once it was tried again.

    Duplicates, busy deferrals, takeovers and renewals are counted by the workers alone: --metrics reads them there.
    With --json each look is one document on a line of its own.
    """
    try:
        with Reader(target) as reader, _display(target, reader, is_live=not once) as show:
            ticker, counter = Ticker(reader, most), Counter(metrics, target.timeout)

            def look() -> Tick:
                tick = ticker.tick()
                show(tick, counter.look() if metrics else None)
                return tick

            tick = look()
            while not once:
                time.sleep(interval)
                look()
            shortage = reader.shortage([pulse.rights for pulse in tick.pulses])
    except KeyboardInterrupt:
        return OK
    if shortage:
        complain(shortage.message)
        return shortage.exit_code
    return OK


@contextmanager
def _display(target: Target, reader: Reader, *, is_live: bool) -> Iterator[Callable[[Tick, Counts | None], None]]:
    """Return what shows a look: a document, a screen, or on something else than a terminal a line."""
    console = new_console()
    if target.as_json:
        yield lambda tick, counts: click.echo(
            json.dumps({"at": _now()} | tick.as_dict(reader) | {"workers": counts.as_dict() if counts else None})
        )
    elif not is_live:
        yield lambda tick, counts: console.print(_screen(tick, reader, counts))
    elif console.is_terminal:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda tick, counts: live.update(_screen(tick, reader, counts), refresh=True)
    else:
        yield lambda tick, counts: say([" ".join([_line(tick), *(counts.lines() if counts else [])])])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _screen(tick: Tick, reader: Reader, counts: Counts | None) -> RenderableType:
    nodes = new_table("node", "answers", "latency", "ops/s", "scripts/s", "keys", "rights", "waits")
    for pulse in tick.pulses:
        _add_node(nodes, pulse, reader)
    sample, workers = tick.sample, [cell(line) for line in counts.lines()] if counts else []
    if sample is None:
        return Group(nodes, cell("no node's records can be read"), *workers)
    records = new_table(*(kind.value for kind in Kind if kind is not Kind.NONE))
    records.add_row(*(cell(f"{sample.kinds.get(kind, 0):,}") for kind in Kind if kind is not Kind.NONE))
    seen = "all" if sample.is_whole else f"about {sample.share:.0%} of the keys"
    lines = [f"{sample.read:,} records of {sample.node}, {seen}:"]
    return Group(nodes, *map(cell, lines), records, *map(cell, _remarks(sample)), *workers, cell(_now(), "dim"))


def _add_node(nodes: Table, pulse: Pulse, reader: Reader) -> None:
    rights = pulse.rights
    answers = cell("yes") if rights.has_answered else cell(f"no: {rights.cause}", "bold red")
    scripts = None if pulse.scripts is None else f"{pulse.scripts:,.0f}"
    waits = span(rights.wait_ms(reader.settings) / 1000 or None)
    numbers = (span(pulse.latency), pulse.ops, scripts, pulse.keys)
    nodes.add_row(cell(rights.node), answers, *map(cell, numbers), cell(rights.standing), cell(waits))


def _remarks(sample: Sample) -> list[str]:
    about = "" if sample.is_whole else "~"
    longest = "none" if sample.longest is None else ("" if sample.is_exact else "at most ") + span(sample.longest)
    rates = f"first claims: {about}{sample.claims:.1f}/s, completed of them: {about}{sample.completions:.1f}/s"
    return [
        f"{rates} (last {WINDOW} s)",
        f"longest running: {longest}; running after a takeover: {sample.taken_over:,}",
    ]


def _line(tick: Tick) -> str:
    """Return a look in one line."""
    answered = [pulse.rights.node for pulse in tick.pulses if pulse.rights.has_answered]
    rights = ",".join(pulse.rights.standing for pulse in tick.pulses)
    words = [_now(), f"nodes={len(answered)}/{len(tick.pulses)}", f"rights={rights}"]
    sample = tick.sample
    if sample is not None:
        words += [f"{kind.value}={sample.kinds.get(kind, 0)}" for kind in Kind if kind is not Kind.NONE]
        words += [f"read={sample.read}", f"share={sample.share:.2f}", *_remarks(sample)]
    return " ".join(words)
