"""The subcommand ``repair``: nodes that forgot their records learn them from the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dramatiq_idem.command.options import Target, on_nodes
from dramatiq_idem.command.outcome import FAILED, OK, STATUSES, CommandError, WrongUsageError
from dramatiq_idem.command.printing import complain, emit, new_console, say, span
from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.rights import NodeRights
from dramatiq_idem.events import NodeRepaired, RecordsForgotten
from dramatiq_idem.store import RedlockStore
from redlock import Event

__all__ = ["repair"]

_RETRY_AFTER = 0.5


@click.command(epilog=STATUSES)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on although too few nodes remember: what only the others know may be run again. For when they are gone "
    "for good.",
)
@click.option("--yes", is_flag=True, help="Do not ask whether the loss is accepted.")
@click.option(
    "--wait", type=click.FloatRange(min=0.0), default=0.0, show_default=True, help="Seconds to try for, if need be."
)
@on_nodes
def repair(target: Target, wait: float, *, accept_loss: bool, yes: bool) -> int:
    """Bring nodes that forgot their records up to date, so that they may speak for the records again.

    Workers do this by themselves when they meet such a node. Needed are N - W + 1 nodes that remember, W being the
    write quorum, and that the node's wait is over. The status is 0 if all nodes may speak for the records afterwards,
    1 if not, with the reason for each.
    """
    if accept_loss:
        _confirm(target, yes=yes)
    events: list[Event] = []
    with Reader(target) as reader:
        before = reader.rights()
        if shortage := reader.shortage(before):
            raise shortage
        _refuse_restarted(before, accept_loss=accept_loss)
        _repair(target, before, events, wait, accept_loss=accept_loss)
        after = reader.rights()
        reasons = {each.node: _reason(each, reader) for each in after if each.standing != "records"}
    if target.as_json:
        repaired = {each.node: each.records for each in events if isinstance(each, NodeRepaired)}
        is_lost = any(isinstance(event, RecordsForgotten) for event in events)
        nodes = [each.as_dict(reader.settings) for each in after]
        emit({"all_speak": not reasons, "repaired": repaired, "loss_accepted": is_lost, "nodes": nodes})
    else:
        say(str(event) for event in events)
        say([] if reasons else ["all nodes may speak for the records"])
    if reasons:
        complain("; ".join(f"{node}: {reason}" for node, reason in reasons.items()))
    return FAILED if reasons else OK


def _confirm(target: Target, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsageError("--accept-loss needs --yes where nobody can be asked")
    question = f"Completions that only missing nodes of {target.namespace!r} know may be run again. Go on?"
    click.confirm(question, abort=True, err=True)


def _refuse_restarted(rights: Sequence[NodeRights], *, accept_loss: bool) -> None:
    """Refuse to count a node as one that remembers while nobody has noticed yet that it restarted."""
    restarted = [each.node for each in rights if each.standing == "restarted"]
    if restarted and not accept_loss:
        names = ", ".join(restarted)
        raise CommandError(f"{names} restarted, and no worker has met it since; the first claim or lease admits it")


def _repair(
    target: Target, rights: Sequence[NodeRights], events: list[Event], wait: float, *, accept_loss: bool
) -> None:
    """Repair until it has worked, or the time is up; what came of it is read off the nodes."""
    store = RedlockStore(
        target.urls,
        namespace=target.namespace,
        write_quorum=target.write_quorum,
        node_timeout=min(target.timeout, _max_ttl(rights)),
        max_ttl=_max_ttl(rights),
        tolerate=target.tolerate,
        observer=lambda event: events.append(event) if isinstance(event, (NodeRepaired, RecordsForgotten)) else None,
    )
    deadline = time.monotonic() + wait
    try:
        with _progress() as progress:
            while not store.repair(accept_loss=accept_loss, progress=progress) and time.monotonic() < deadline:
                time.sleep(_RETRY_AFTER)
    finally:
        store.close()


def _max_ttl(rights: Sequence[NodeRights]) -> float:
    """Return the namespace's own max_ttl: a repair takes a lease, and must not raise it."""
    return min((each.marker.granted_ms / 1000 for each in rights if each.marker), default=30.0)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Show how far it is on a terminal; elsewhere there is nothing but the outcome."""
    console = new_console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks = {"": bar.add_task("asking the nodes", total=None)}

        def show(node: str, read: int) -> None:
            if node not in tasks:
                tasks[node] = bar.add_task("", total=None)
            bar.update(tasks[node], description=f"{node}: {read:,} records read")

        yield show


def _reason(rights: NodeRights, reader: Reader) -> str:
    """Return why a node may not speak for the records."""
    if rights.cause is not None:
        return rights.cause
    if rights.standing == "new":
        return (
            "was never used, or forgot everything, and no worker has met it since; the first claim or lease admits it"
        )
    if rights.standing in ("fresh", "leases"):
        left = rights.wait_ms(reader.settings) / 1000
        if left:
            return f"forgot, and waits for {span(left)} until it is certain that all runs it may know of have ended"
        remembering = sum(each.standing == "records" for each in reader.rights())
        needed = reader.quorums.remembering
        return f"forgot; {remembering} nodes remember and {needed} are needed, or another repair is under way"
    return (
        "restarted, and no worker has met it since" if rights.standing == "restarted" else "its marker is none of ours"
    )
