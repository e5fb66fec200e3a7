"""The subcommand ``show``: one key on every node, side by side, and what a message of it would meet now."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.text import Text

from dramatiq_idem.command.listing import key_as_dict
from dramatiq_idem.command.options import Target, on_nodes
from dramatiq_idem.command.outcome import FAILED, OK, STATUSES, WrongUsageError
from dramatiq_idem.command.preview import Preview, preview
from dramatiq_idem.command.printing import PALETTE, block, cell, complain, emit, new_console, new_table, span
from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.rights import NodeRights
from dramatiq_idem.command.view import Held, Key, Kind
from dramatiq_idem.keys import MAX_KEY_BYTES, record_name
from dramatiq_idem.record import Record, State

__all__ = ["name_of", "show"]

_TOKEN_SHOWN = 8
"""Characters of a token that are shown: enough to compare, too few to act with."""
_TAILS = {State.DONE: "result", State.FAILED: "reason", State.RUNNING: "before"}


@click.command(epilog=STATUSES)
@click.argument("key")
@click.option("--actor", help="Take KEY for this actor's idempotency key, not for a record's whole name.")
@click.option("--no-restart-guard", is_flag=True, help="The middleware is used with restart_guard=False.")
@on_nodes
def show(target: Target, key: str, actor: str | None, *, no_restart_guard: bool) -> int:
    """Show what each node has under KEY, and what a message would meet now.

    KEY is the record's name, "actor:key". Rows in which the nodes differ are marked; lives and leases that are left
    are not compared, nor are fencing counters, which are each node's own. The age counts from the key's first claim.
    The last line says what the middleware would do with a message of the key: run it, skip it, put it back since
    another one runs it (busy), or put it back for want of a quorum. Nothing is changed. The status is 1 if no node
    has anything under KEY.
    """
    name = name_of(key, actor)
    with Reader(target, restart_guard=not no_restart_guard) as reader:
        found, rights = reader.key(name)
        shortage = reader.shortage(rights)
        would = preview(found.helds, rights, reader.quorums, reader.settings)
    if target.as_json:
        emit(_as_dict(found, rights, would))
    else:
        _print(found, rights, would)
    if shortage:
        complain(shortage.message)
        return shortage.exit_code
    return FAILED if found.kind is Kind.NONE else OK


def name_of(key: str, actor: str | None) -> str:
    """Return the name of a key's record.

    Raises:
        WrongUsageError: It is none that a record can have.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise WrongUsageError(f"KEY must be UTF-8, not {key!r}") from None
    if not key or size > (MAX_KEY_BYTES if actor is not None else 4 * MAX_KEY_BYTES):
        raise WrongUsageError(f"KEY must have from 1 to {MAX_KEY_BYTES:,} bytes")
    return key if actor is None else record_name(actor, key)


def _fields(record: Record | None) -> dict[str, Any]:
    """Return what is compared between nodes."""
    if record is None:
        return {}
    return {
        "generation": record.generation,
        "takeovers": record.takeovers,
        "message": record.message_id,
        "fingerprint": record.fingerprint,
        "token": record.token[:_TOKEN_SHOWN],
        **{name: record.tail if record.state is state else "" for state, name in _TAILS.items()},
    }


def _differences(helds: Sequence[Held]) -> list[str]:
    """Return the fields in which the nodes that answered differ."""
    known = [held for held in helds if held.cause is None]
    different = ["state"] if len({held.kind for held in known}) > 1 else []
    fields = [_fields(held.record) for held in known if held.record]
    names = fields[0] if fields else {}
    return different + [name for name in names if len({each[name] for each in fields}) > 1]


def _result(text: str) -> Any:
    """Return a recorded result; as text where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text or None


def _as_dict(key: Key, rights: Sequence[NodeRights], would: Preview) -> dict[str, Any]:
    nodes = []
    for held, right in zip(key.helds, rights, strict=True):
        record = held.record
        fields = _fields(record)
        if record and record.state is State.DONE:
            fields["result"] = _result(record.tail)
        nodes.append(
            {
                "node": held.node,
                "answered": held.cause is None,
                "cause": held.cause,
                "may_speak_for": right.standing,
                "state": held.kind.value if held.cause is None else None,
                **fields,
                "fence": record.fence if record else None,
                "age": held.age,
                "lease_left": held.lease_left,
                "ttl_left": held.ttl_left,
            }
        )
    return {
        **key_as_dict(key),
        "nodes": nodes,
        "differs": _differences(key.helds),
        "would": {"action": would.action, "detail": would.detail},
    }


def _print(key: Key, rights: Sequence[NodeRights], would: Preview) -> None:
    different = _differences(key.helds)
    table = new_table("", *(held.node for held in key.helds), "differs", title=None)

    def row(name: str, value_of: Callable[[Held], Any]) -> None:
        values = [value_of(held) for held in key.helds]
        if any(value not in (None, "") for value in values):
            differs = name in different
            style = "bold yellow" if differs else ""
            table.add_row(
                cell(name, style),
                *(value if isinstance(value, Text) else cell(value) for value in values),
                cell("differs" if differs else " "),
            )

    row("state", lambda held: held.kind.value if held.cause is None else "no answer")
    row("why", lambda held: held.cause)
    for name in _fields(Record(State.FREE, 0, 0, "", 0, 0, "", "")):
        row(name, lambda held, name=name: _shown(name, _fields(held.record).get(name)))  # type: ignore[misc]
    row("fence", lambda held: held.record.fence if held.record else None)
    row("age", lambda held: span(held.age))
    row("lease left", lambda held: span(held.lease_left))
    row("ttl left", lambda held: span(held.ttl_left))
    standings = {right.node: right.standing for right in rights}
    row("may speak for", lambda held: standings[held.node])
    console = new_console()
    console.print(
        cell(key.name, "bold"), cell(key.kind.value), cell(f"on {len(key.holders)} of {len(key.helds)} nodes")
    )
    console.print(table)
    console.print(
        cell("a message would now meet:"), cell(would.action, PALETTE[would.action]), cell(f"({would.detail})")
    )


def _shown(name: str, value: Any) -> Any:
    return block(json.dumps(_result(value), indent=2, ensure_ascii=False)) if name == "result" and value else value
