"""A place in a connection's queue: what was sent, and who waits for the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from redlock.plan import Command

__all__ = ["Asker", "Slot"]


class Asker(Protocol):
    """Who sent a command."""

    @property
    def is_open(self) -> bool:
        """Whether the reply is still wanted."""

    def answered(self, index: int, reply: Any) -> None:
        """Take a reply, or the NodeFaultError that ended the link."""


@dataclass(slots=True)
class Slot:
    """A command that was sent and whose reply is still to come.

    Args:
        command: What was sent.
        asker: Who gets the reply; None if nobody waits for it.
        index: The node's place among the asker's votes.
        sent_at: Clock reading when it was queued.
        deadline: Clock reading after which the link is given up.
        sent_as: Its number among the link's commands.
    """

    command: Command
    asker: Asker | None
    index: int
    sent_at: float
    deadline: float
    sent_as: int = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the reply."""
        return self.asker is not None and self.asker.is_open

    def answer(self, reply: Any) -> None:
        """Hand the reply on."""
        if self.asker is not None:
            self.asker.answered(self.index, reply)
