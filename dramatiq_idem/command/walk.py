"""Walking over all records: node by node, by SCAN, each key looked up on all nodes when it is met first.

Nothing is kept but the names that were found to be wanted: there may be millions of records. A key is met on every node
that has it; the one whose record decides is among them, so a node's own record tells whether a key can be wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dramatiq_idem.command.reading import Page, Reader
from dramatiq_idem.command.view import Held, Key, Kind, first_claimed, kind_of, read_record
from redlock import clock

__all__ = ["Walk", "Wanted"]

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys are wanted.

    Args:
        kinds: What they are; empty for all.
        older_than: Seconds since their first claim; None for all.
    """

    kinds: frozenset[Kind] = frozenset()
    older_than: float | None = None

    def has(self, kind: Kind, age: float | None) -> bool:
        """Return whether a key is wanted."""
        if kind is Kind.NONE or (self.kinds and kind not in self.kinds):
            return False
        return self.older_than is None or (age is not None and age >= self.older_than)


class Walk:
    """One walk over the keys whose names match a pattern.

    Args:
        reader: The nodes.
        pattern: As of SCAN, for names.
        wanted: Which of them.
    """

    def __init__(self, reader: Reader, pattern: str, wanted: Wanted) -> None:
        self._reader = reader
        self._pattern = pattern
        self._wanted = wanted
        self.unread: dict[str, str] = {}
        """Nodes whose records could not be walked over to the end, and why."""

    def __iter__(self) -> Iterator[Key]:
        found: set[str] = set()
        for index, held in enumerate(self._clocks()):
            if held.cause is not None:
                self.unread[held.node] = held.cause
                continue
            started = clock()
            for page in self._pages(index, held.node):
                now_ms = held.now_ms + round((clock() - started) * 1000)
                names = [name for name, text in page.texts.items() if name not in found and self._may_fit(text, now_ms)]
                for key in self._reader.keys(names):
                    if self._wanted.has(key.kind, key.age):
                        found.add(key.name)
                        yield key

    def _clocks(self) -> tuple[Held, ...]:
        return self._reader.keys(["-"])[0].helds

    def _pages(self, index: int, node: str) -> Iterator[Page]:
        cursor = "0"
        while True:
            page = self._reader.page(index, cursor, self._pattern, _PAGE)
            if page.cause is not None:
                self.unread[node] = page.cause
                return
            yield page
            cursor = page.cursor
            if cursor == "0":
                return

    def _may_fit(self, text: str, now_ms: int) -> bool:
        """Return whether the key may be wanted if this record decides; a second more or less is left to the look."""
        record = read_record(text)
        if record is None:
            return not self._wanted.kinds or Kind.FOREIGN in self._wanted.kinds
        kinds = {kind_of(record, now_ms - 1000), kind_of(record, now_ms + 1000)}
        since = first_claimed(record)
        age = None if since is None else now_ms / 1000 + 1 - since
        return any(self._wanted.has(kind, age) for kind in kinds)
