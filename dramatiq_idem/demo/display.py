"""What a person sees: progress while it works, then a table. Plain lines where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dramatiq_idem.demo.audit import Report

__all__ = ["Display", "rows"]

_LINE_EVERY = 2.0
"""Seconds between two lines of progress where there is no terminal."""


class Display:
    """Shows one run.

    Args:
        console: Where to.
        messages: How many are to be sent.
        payments: How many are to be completed.
    """

    def __init__(self, console: Console, messages: int, payments: int) -> None:
        self._console = console
        self._total = messages, payments
        self._next_line = 0.0
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._sent = self._progress.add_task("messages sent", total=messages)
        self._done = self._progress.add_task("payments completed", total=payments)
        self._started = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show what happened, with the time."""
        self._console.print(
            f"{time.monotonic() - self._started:5.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )

    def update(self, sent: int, completed: int) -> None:
        """Show how far it is."""
        if self._console.is_terminal:
            self._progress.update(self._sent, completed=sent)
            self._progress.update(self._done, completed=completed)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY
            self.say(f"sent {sent:,} of {self._total[0]:,} messages, completed {completed:,} of {self._total[1]:,}")

    def conclude(self, report: Report) -> None:
        """Show the table, and what it means."""
        self._console.print("", _table(report), "")
        for line in _remarks(report):
            self._console.print(line, highlight=False, markup=False)


def _table(report: Report) -> Table:
    table = Table.grid("name", "count", "note", padding=(0, 3, 0, 0))
    table.columns[1].justify = "right"
    for name, count, note, is_wrong in rows(report):
        table.add_row(name, f"{count:,}", note, style="bold red" if is_wrong and count else None)
    table.add_row("seconds", f"{report.seconds:.1f}", "" if report.finished else "the time was up")
    return table


def rows(report: Report) -> list[tuple[str, int, str, bool]]:
    """Return what the table says: name, count, note, and whether anything but 0 is wrong."""
    return [
        ("payments", report.distinct, "", False),
        ("messages sent", report.sent, "one payment in five is sent twice", False),
        ("deliveries", report.deliveries, "sent, redelivered or deferred ones", False),
        ("body starts", report.started, f"beyond one per completed payment: {report.repeated:,}", False),
        ("completed", report.completed, "recorded on a majority of nodes, and charged", False),
        ("duplicates skipped", report.skipped, "the payment was completed", False),
        ("busy deferrals", report.busy, "another delivery ran the payment", False),
        ("no-quorum deferrals", report.unavailable, "too few nodes answered", False),
        ("takeovers", report.takeovers, "claims of dead workers that ran out", False),
        ("leases lost", report.lease_lost, "a run went on that others might repeat", False),
        ("workers killed", report.workers_killed, f"runs under way in them: {report.cut_off:,}", False),
        ("nodes killed", report.nodes_killed, "of three; started again with its data", False),
        ("charge requests", report.requests, "what the gateway was asked for", False),
        ("charges", report.charges, "what it did", False),
        ("lost", report.lost, "not completed although the queues are empty", True),
        ("completed twice", report.completed_twice, "payments with two completed runs", True),
        ("charged twice", report.charged_twice, "payments with two charges", True),
    ]


def _remarks(report: Report) -> list[str]:
    remarks = []
    if report.without:
        remarks.append(f"On purpose without: {report.without}.")
    elif report.repeated:
        known = report.requests - report.charges
        remarks.append(
            f"Bodies that ran again: {report.repeated:,}. Their worker was killed before the completion was recorded, "
            f"and nobody can know how far it had got. Charged already: {known:,}. They handed current_run().key to the "
            "gateway as its idempotency key, so it did not charge again."
        )
    if not report.finished:
        remarks.append("FAILED: the time was up.")
    if report.lost or report.charged_twice:
        remarks.append(f"FAILED: {report.lost:,} payments lost, {report.charged_twice:,} charged twice.")
    return remarks or ["No body ran twice."]
