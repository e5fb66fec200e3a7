"""What people read: tables and lines on the terminal, and the JSON document in their place."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["PALETTE", "block", "cell", "complain", "emit", "new_console", "new_table", "printable", "say", "span"]

_WIDE = 10_000
"""Columns where there is no terminal: lines are not to be broken for whoever reads them with a program."""
_JOINER = "\u200d"
_SPANS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))

PALETTE = {
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "orphaned": "bold red",
    "free": "yellow",
    "forgotten": "dim",
    "foreign": "bold red",
    "run": "green",
    "skip": "cyan",
    "busy": "yellow",
    "no quorum": "bold red",
}
"""Styles of the words that tables are read for."""


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that colours only on a terminal, and takes nothing in a text for markup."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def printable(text: str) -> str:
    """Return a text that cannot move the cursor, colour the screen or fail to be encoded: keys come from outside."""
    shown = "".join(
        each if each.isprintable() or each == _JOINER else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text
    )
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def cell(value: Any, style: str = "") -> Text:
    """Return a value as it stands in a table: nothing as a dash, states in their colours."""
    text = "-" if value is None or value == "" else printable(str(value))
    return Text(text, style or PALETTE.get(text, ""), overflow="fold")


def block(text: str) -> Text:
    """Return several lines as they stand in a table."""
    return Text("\n".join(map(printable, text.split("\n"))), overflow="fold")


def new_table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(Text(printable(column)), overflow="fold")
    return table


def span(seconds: float | None) -> str:
    """Return a length of time for people; empty if it is not known."""
    if seconds is None:
        return ""
    for unit, name in _SPANS:
        if abs(seconds) >= unit * 2:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s" if abs(seconds) >= 1 else f"{seconds * 1000:.{1 if abs(seconds) > 0.001 else 2}f} ms"


def emit(document: Any) -> None:
    """Print the JSON document."""
    click.echo(json.dumps(document, indent=2))


def say(lines: Iterable[str]) -> None:
    """Print lines for people."""
    console = new_console()
    for line in lines:
        console.print(Text(printable(line)), soft_wrap=True)


def complain(text: str) -> None:
    """Print why the status is not 0, where the outcome itself was printed already."""
    click.echo(f"Error: {text}", err=True)
