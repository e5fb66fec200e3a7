"""A place in the connections' queues: what was sent, and who waits for the replies."""

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

    def answered(self, index: int, reply: Any, now: float) -> None:
        """Take a node's reply, or the NodeFaultError that ended its link, and when it was read."""


@dataclass(slots=True)
class Slot:
    """A command that was sent and whose reply is still to come: from one node, or from all that were sent the same.

    Args:
        command: What was sent.
        data: The command's bytes, by its script's hash.
        asker: Who gets the replies; None if nobody waits for them.
        deadline: Clock reading after which a link that has not answered it is given up.
        sent_at: Clock reading when it was queued on the links.
    """

    command: Command
    data: bytes
    asker: Asker | None
    deadline: float
    sent_at: float = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the reply."""
        return self.asker is not None and self.asker.is_open

    def answer(self, index: int, reply: Any, now: float) -> None:
        """Hand a node's reply on; arguments as for `Asker.answered`."""
        if self.asker is not None:
            self.asker.answered(index, reply, now)
