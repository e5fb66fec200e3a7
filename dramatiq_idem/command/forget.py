"""The subcommand ``forget``: keys whose next message is to run, whatever is recorded.

What is to be forgotten is first put together in full, with every node present; only then anything is written. A pattern
needs the code of a dry run, a hash of that very list, so that nothing is forgotten that nobody saw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from dramatiq_idem.command.listing import pattern_for
from dramatiq_idem.command.options import Target, on_nodes
from dramatiq_idem.command.outcome import FAILED, OK, STATUSES, CommandError, TooFewNodesError, WrongUsageError
from dramatiq_idem.command.printing import cell, complain, emit, new_console, new_table, say, span
from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.show import name_of
from dramatiq_idem.command.view import Held, Key, Kind
from dramatiq_idem.command.walk import Walk, Wanted
from dramatiq_idem.errors import ForgetError

__all__ = ["forget"]

_GLOB = frozenset("*?[\\")
_RETENTION_MS = 86_400_000
"""Least life of what says that a key was forgotten: the middleware's default retention."""


@dataclass(slots=True)
class _Harvest:
    """What a call is about.

    Args:
        keys: To be forgotten, by name.
        running: Left alone since somebody runs them.
        names: Which names were given, and not a pattern.
    """

    keys: list[Key] = field(default_factory=list)
    running: list[Key] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def code(self, reader: Reader) -> str:
        """Return what a dry run prints and the real one needs: it changes with whatever is listed, and where."""
        lines: list[Any] = [reader.settings.namespace, reader.settings.nodes_id]
        lines += [[key.name, key.kind.value, *_identity(key)] for key in self.keys]
        return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:12]


@click.command(epilog=STATUSES)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--actor", help="Take KEY for this actor's idempotency key, not for a record's whole name.")
@click.option("--force", is_flag=True, help="Forget also what somebody runs now: it may run twice then.")
@click.option("--dry-run", is_flag=True, help="Only list what would be forgotten, and print the code for --confirm.")
@click.option("--confirm", metavar="CODE", help="The code of the dry run; needed for a pattern.")
@click.option("--exact", is_flag=True, help="Take KEY as it stands, even if it looks like a pattern.")
@on_nodes
def forget(
    target: Target,
    keys: tuple[str, ...],
    actor: str | None,
    confirm: str | None,
    *,
    force: bool,
    dry_run: bool,
    exact: bool,
) -> int:
    r"""Let the next message of each KEY run, whatever is recorded.

    KEY is a record's name, "actor:key"; its generation is raised on all nodes, and printed. All nodes must answer: a
    completion that survives on one would come back. A key that somebody runs now is refused, and then none is
    forgotten, unless --force is given.

    A KEY with *, ?, [ or \ in it is a pattern, as of SCAN. It works in two steps: --dry-run lists what would be
    forgotten and prints a code, --confirm CODE does it, if it is still the same list. Keys that are running are left
    out of what a pattern stands for, unless --force is given.
    """
    patterns = [key for key in keys if not exact and _GLOB & set(key)]
    if patterns and not dry_run and confirm is None:
        text = f"{patterns[0]!r} is a pattern: see with --dry-run what it stands for (or --exact if it is a name)"
        raise WrongUsageError(text)
    names = [name_of(key, actor) for key in keys if key not in patterns]
    with Reader(target) as reader:
        _require_all(reader)
        harvest = _gather(reader, names, [pattern_for(pattern, actor) for pattern in patterns], force=force)
        code = harvest.code(reader)
        if dry_run:
            _show(target, harvest, code)
            return OK
        if confirm is not None and confirm != code:
            raise CommandError("not the same keys or records as in that dry run; see --dry-run again")
        _refuse_running(harvest)
        forgotten, error = _forget(reader, harvest.keys, force=force)
    return _report(target, forgotten, harvest.running, error)


def _require_all(reader: Reader) -> None:
    causes = {each.node: each.cause for each in reader.rights() if each.cause is not None}
    if causes:
        reasons = "; ".join(f"{node}: {cause}" for node, cause in causes.items())
        raise TooFewNodesError(f"nothing is forgotten: all nodes must answer, and {reasons}")


def _gather(reader: Reader, names: Sequence[str], patterns: Sequence[str], *, force: bool) -> _Harvest:
    """Put together what is to be forgotten."""
    harvest = _Harvest(names=tuple(names))
    found = {key.name: key for key in reader.keys(dict.fromkeys(names))}
    for pattern in patterns:
        walk = Walk(reader, pattern, Wanted())
        found = {key.name: key for key in walk if not _is_forgotten(key)} | found
        if walk.unread:
            reasons = "; ".join(f"{node}: {cause}" for node, cause in walk.unread.items())
            raise TooFewNodesError(f"nothing is forgotten: not all could be read, and {reasons}")
    for name in sorted(found):
        key = found[name]
        _refuse_unreadable(key)
        is_running = any(held.kind is Kind.RUNNING for held in key.helds)
        (harvest.running if is_running and not force else harvest.keys).append(key)
    return harvest


def _refuse_unreadable(key: Key) -> None:
    silent = [f"{held.node}: {held.cause}" for held in key.helds if held.cause is not None]
    if silent:
        raise TooFewNodesError(f"nothing is forgotten: all nodes must answer, and {'; '.join(silent)}")
    foreign = [held.node for held in key.helds if held.kind is Kind.FOREIGN]
    if foreign:
        raise CommandError(f"nothing is forgotten: what {', '.join(foreign)} has under {key.name!r} is no record")


def _refuse_running(harvest: _Harvest) -> None:
    running = [key for key in harvest.running if key.name in harvest.names]
    if running:
        names = ", ".join(repr(key.name) for key in running)
        raise CommandError(f"nothing is forgotten: {names} is running, for {span(running[0].lease_left)}; see --force")


def _forget(reader: Reader, keys: Sequence[Key], *, force: bool) -> tuple[dict[str, int], str | None]:
    """Forget one key after the other; return the new generations, and why it ended early."""
    forgotten: dict[str, int] = {}
    for key in keys:
        # What says that the key is forgotten has to outlive whatever a node may have kept of it.
        retention_ms = max(_RETENTION_MS, *(held.ttl_ms or 0 for held in key.helds))
        try:
            forgotten[key.name] = reader.forget(key.name, retention_ms, force=force)
        except (ForgetError, ValueError) as error:
            return forgotten, str(error)
    return forgotten, None


def _report(target: Target, forgotten: dict[str, int], running: Sequence[Key], error: str | None) -> int:
    left = [key.name for key in running]
    if target.as_json:
        done = [{"name": name, "generation": generation} for name, generation in forgotten.items()]
        emit({"forgotten": done, "running": left} | ({"error": error} if error else {}))
    else:
        say(f"{name}: forgotten, generation {generation}" for name, generation in forgotten.items())
        say(f"{name}: left alone, it is running" for name in left)
    if error:
        complain(error)
    return FAILED if error else OK


def _show(target: Target, harvest: _Harvest, code: str) -> None:
    if target.as_json:
        listed = [{"name": key.name, "state": key.kind.value} for key in harvest.keys]
        emit({"would_forget": listed, "running": [key.name for key in harvest.running], "confirm": code})
        return
    table = new_table("name", "state", "nodes")
    rows = [(key, "") for key in harvest.keys] + [(key, ", left alone") for key in harvest.running]
    for key, left in rows:
        table.add_row(cell(key.name), cell(key.kind.value + left), cell(f"{len(key.holders)}/{len(key.helds)}"))
    new_console().print(table)
    say([f"{len(harvest.keys)} would be forgotten; to do it, the same call with: --confirm {code}"])


def _is_forgotten(key: Key) -> bool:
    """Return whether nothing is left to forget: every node says so already, of one generation."""
    return len(key.holders) == len(key.helds) and key.kind is Kind.FORGOTTEN


def _identity(key: Key) -> list[Any]:
    return [_of(held) for held in key.helds]


def _of(held: Held) -> list[Any] | None:
    """Return what of a record must still be the same: not its counters and times."""
    return [held.record.state.value, held.record.generation, held.record.token] if held.record else None
