"""The subcommand ``ls``: which keys there are, and what they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import click

from dramatiq_idem.command.options import Span, Target, on_nodes
from dramatiq_idem.command.outcome import OK, STATUSES
from dramatiq_idem.command.printing import cell, complain, emit, new_console, new_table, say, span
from dramatiq_idem.command.reading import Reader, exact
from dramatiq_idem.command.view import Key, Kind
from dramatiq_idem.command.walk import Walk, Wanted
from dramatiq_idem.keys import record_name

__all__ = ["key_as_dict", "ls", "pattern_for"]

_STATES = [kind.value for kind in Kind if kind is not Kind.NONE]


@click.command(epilog=STATUSES)
@click.argument("pattern", default="*")
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only these; may be given several times.")
@click.option("--actor", help="Only this actor's.")
@click.option(
    "--older-than", type=Span(), help="Only keys first claimed at least so long ago: seconds, or 15m, 2h, 3d."
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=100, show_default=True, help="How many at most; 0 for all."
)
@on_nodes
def ls(
    target: Target, pattern: str, state: tuple[str, ...], actor: str | None, older_than: float | None, limit: int
) -> int:
    """List keys by what they are.

    PATTERN is one of SCAN, for names: * and ? stand for anything. The nodes' records of a key are brought together as
    a claim does it: the highest generation counts, and in it done over running over the rest; "nodes" says how many
    of them agree. Orphaned is a run whose lease is over, and what was dead-lettered for that. Foreign is what is no
    record, of whatever type: its key cannot be claimed on that node. The age counts from the key's first claim.
    Nothing is changed; the nodes are read in small steps.
    """
    wanted = Wanted(frozenset(Kind(each) for each in state), older_than)
    with Reader(target) as reader:
        walk = Walk(reader, pattern_for(pattern, actor), wanted)
        keys = list(itertools.islice(walk, limit + 1 if limit else None))
        rights = reader.rights()
        shortage = reader.shortage(rights)
    has_more = bool(limit) and len(keys) > limit
    keys = keys[:limit] if limit else keys
    unread = walk.unread | {each.node: each.cause for each in rights if each.cause is not None}
    if target.as_json:
        records = [key_as_dict(key) for key in keys]
        emit({"namespace": target.namespace, "records": records, "has_more": has_more, "unread": unread})
    else:
        _print(keys, len(rights), is_certain=not shortage)
        say([f"more than {limit}: raise --limit"] if has_more else [])
        say(f"{node} could not be read to the end: {cause}" for node, cause in unread.items())
    if shortage:
        complain(shortage.message)
        return shortage.exit_code
    return OK


def pattern_for(pattern: str, actor: str | None) -> str:
    """Return a pattern for names, within an actor where one is given."""
    return pattern if actor is None else exact(record_name(actor, "")) + pattern


def key_as_dict(key: Key) -> dict[str, Any]:
    """Return a key for JSON."""
    record = key.record
    return {
        "name": key.name,
        "state": key.kind.value,
        "holders": [held.node for held in key.holders],
        "on": len(key.holders),
        "of": len(key.helds),
        "generation": record.generation if record else None,
        "takeovers": key.takeovers,
        "message_id": record.message_id or None if record else None,
        "age": key.age,
        "lease_left": key.lease_left,
        "ttl_left": key.ttl_left,
    }


def _print(keys: Sequence[Key], nodes: int, *, is_certain: bool) -> None:
    table = new_table("name", "state", "nodes", "age", "lease left", "ttl left", "takeovers", "generation", "message")
    for key in keys:
        record = key.record
        on = f"{len(key.holders)}/{nodes}"
        table.add_row(
            cell(key.name),
            cell(key.kind.value),
            cell(on, "" if len(key.holders) == nodes else "yellow"),
            *map(cell, (span(key.age), span(key.lease_left), span(key.ttl_left), key.takeovers or "")),
            cell(record.generation if record and record.generation else ""),
            cell(record.message_id if record else ""),
        )
    if keys:
        new_console().print(table)
    elif is_certain:
        say(["no such record"])
