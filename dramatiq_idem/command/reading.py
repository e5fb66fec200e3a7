"""Reading the nodes for people: nothing in here writes.

All nodes get the time to connect before the first answer counts, unlike for a claim, which goes on with a quorum.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dramatiq_idem.command.options import Target
from dramatiq_idem.command.outcome import CommandError, too_few
from dramatiq_idem.command.rights import NodeRights
from dramatiq_idem.command.view import Held, Key, merge
from dramatiq_idem.lookup import LOOK, Lookup
from redlock import (
    ADMISSION,
    Broadcast,
    Command,
    Event,
    NodeDown,
    Nodes,
    NodeUp,
    Plan,
    Vote,
    VoteKind,
    clock,
    load_script,
    parse_nodes,
)

__all__ = ["Page", "Reader", "exact"]

MARKER = load_script("redlock", "marker", head=ADMISSION)
BROWSE = load_script("dramatiq_idem", "browse")

_PAUSE = 0.02
_SHOWN = 2048
"""Bytes of a value that a walk reads: a record's head and the beginning of its tail, whatever stands under the key."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a node's records.

    Args:
        cursor: Where to go on; "0" behind the last.
        texts: What stands under each record's name, cut off after some bytes; nothing for what is no text.
        cause: Why the node could not be read; None if it was.
    """

    cursor: str
    texts: dict[str, str]
    cause: str | None = None


class Reader:
    """The nodes, open for reading; a context manager.

    Args:
        target: Which nodes.
        restart_guard: Whether a node that forgot has to wait; as for the middleware.
    Raises:
        SettingsError: A node cannot be read, or is listed twice.
    """

    def __init__(self, target: Target, *, restart_guard: bool = True) -> None:
        self.quorums = target.quorums
        self.settings = target.settings(restart_guard=restart_guard)
        self.lookup = Lookup(self.settings, self.quorums)
        self._down: dict[str, str] = {}
        self._nodes = Nodes(parse_nodes(target.urls, target.tolerate), target.timeout, self._observe)

    def __enter__(self) -> Reader:
        deadline = clock() + self.settings.node_timeout
        try:
            while clock() < deadline and not self._is_complete(self.rights()):
                time.sleep(_PAUSE)
        except BaseException:
            self._nodes.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._nodes.close()

    @property
    def names(self) -> list[str]:
        """The nodes' names: addresses without credentials."""
        return self._nodes.names

    def rights(self) -> list[NodeRights]:
        """Return what each node may do for the namespace."""
        return [NodeRights.of(vote) for vote in self._ask_all(self._marker_command())]

    def key(self, name: str) -> tuple[Key, list[NodeRights]]:
        """Return one key as all nodes have it, and what they may do."""
        looks, markers = self._nodes.run(_asked((self._to_all(self._look(name)), self._to_all(self._marker_command()))))
        return merge(name, [Held.of(vote) for vote in looks]), [NodeRights.of(vote) for vote in markers]

    def keys(self, names: Iterable[str]) -> list[Key]:
        """Return keys as all nodes have them, in one round trip."""
        wanted = list(names)
        if not wanted:
            return []
        answers = self._nodes.run(_asked(tuple(self._to_all(self._look(name)) for name in wanted)))
        return [merge(name, [Held.of(vote) for vote in votes]) for name, votes in zip(wanted, answers, strict=True)]

    def page(self, index: int, cursor: str, pattern: str, count: int) -> Page:
        """Read about `count` records of one node whose names match, from a cursor on."""
        prefix = self.settings.key("record") + ":"
        vote = self.ask(index, Command(BROWSE, (), (cursor, exact(prefix) + pattern, count, _SHOWN)))
        if vote.kind is not VoteKind.GRANTED:
            return Page("0", {}, vote.cause or "refused")
        values = [_text(value) for value in vote.reply[1]]
        names = [key.removeprefix(prefix) for key in values[0::2]]
        return Page(str(vote.reply[0]), dict(zip(names, values[1::2], strict=True)))

    def ask(self, index: int, command: Command) -> Vote:
        """Ask one node."""
        commands = tuple(command if each == index else None for each in range(self.quorums.nodes))
        votes = self._nodes.run(_asked((Broadcast(commands, self.settings.node_timeout),)))[0]
        return votes[index]  # type: ignore[no-any-return]

    def forget(self, name: str, retention_ms: int, *, force: bool) -> int:
        """Begin a new generation of a key on all nodes, as `Lookup.forget` says: the one thing that writes."""
        return self._nodes.run(self.lookup.forget(name, retention_ms, force=force))

    def shortage(self, rights: Sequence[NodeRights], needed: int | None = None) -> CommandError | None:
        """Return the error if fewer nodes answered than needed; default a majority."""
        causes = {each.node: each.cause for each in rights if each.cause is not None}
        least = self.quorums.lease if needed is None else needed
        return too_few(causes, self.quorums.nodes, least) if self.quorums.nodes - len(causes) < least else None

    def _is_complete(self, rights: Sequence[NodeRights]) -> bool:
        """Return whether nothing more can be expected of any node."""
        return all(each.has_answered or each.node in self._down for each in rights)

    def _observe(self, event: Event) -> None:
        if isinstance(event, NodeDown):
            self._down[event.node] = event.cause
        elif isinstance(event, NodeUp):
            self._down.pop(event.node, None)

    def _look(self, name: str) -> Command:
        return Command(LOOK, (self.settings.key("record", name), self.settings.key("marker")), ())

    def _marker_command(self) -> Command:
        return Command(MARKER, (self.settings.key("marker"),), ())

    def _to_all(self, command: Command) -> Broadcast:
        return Broadcast.to_all(command, self.quorums.nodes, self.settings.node_timeout)

    def _ask_all(self, command: Command) -> list[Vote]:
        return self._nodes.run(_asked((self._to_all(command),)))[0]  # type: ignore[no-any-return]


def exact(text: str) -> str:
    """Return a text as a glob pattern that matches it alone."""
    return "".join(f"\\{each}" if each in "*?[]^\\" else each for each in text)


def _asked(broadcasts: tuple[Broadcast, ...]) -> Plan[Any]:
    return (yield broadcasts)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
