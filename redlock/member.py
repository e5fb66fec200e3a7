"""One node as the fan-out sees it: its link, what it is owed, and when to try it again after a failure."""

from __future__ import annotations

import math
import random
from collections import deque

from redlock.link import Link
from redlock.node import NO_TLS_HINT, Node, NodeFaultError
from redlock.plan import Clock, Command
from redlock.quorum import Vote, VoteKind
from redlock.slot import Slot
from redlock.wire import packed

__all__ = ["Member"]

_MOST_OWED = 10_000
"""Commands that are kept for a node that cannot be reached; beyond that the oldest are forgotten."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds for which a node that failed is left out: doubled at each failure in a row, with jitter."""


class Member:
    """One node: its link, and when to try it again after a failure."""

    def __init__(self, node: Node, clock: Clock, index: int) -> None:
        self.node = node
        self.name = node.name
        self.index = index
        self.link = Link(node, clock, index)
        self.owed: deque[tuple[float, Command]] = deque(maxlen=_MOST_OWED)
        self.fault: NodeFaultError | None = None
        self.failures = 0
        self.was_late_to_object = False
        """Whether it refused to vote when nobody listened any more: then it is waited for the next time."""
        self.retry_at = -math.inf
        self.is_opening = False
        self.opened: Link | NodeFaultError | None = None

    def pause(self) -> float:
        """Return how long to leave the node out after one more failure."""
        self.failures += 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * float(2 ** min(self.failures - 1, 10)))
        return pause * random.uniform(0.75, 1.0)

    def owe(self, command: Command, now: float) -> None:
        """Remember what the node has to be told once it is back, as long as that is worth it."""
        if command.worth > 0:
            self.owed.append((now + command.worth, command))

    def pay(self, now: float, timeout: float) -> None:
        """Queue what is owed on the open link; nobody waits for the replies."""
        while self.owed:
            worth_until, command = self.owed.popleft()
            if worth_until > now:
                self.link.send(Slot(command, packed(command), None, now + timeout, now))

    def unknown(self, cause: str | None = None) -> Vote:
        """Return this node's vote while it gives none: for the given cause, or for what is wrong with it."""
        if cause or self.fault is None:
            cause = cause or f"not connected yet{NO_TLS_HINT if self.node.is_tls else ''}"
            return Vote(self.node.name, VoteKind.UNKNOWN, cause=cause)
        return Vote(self.node.name, VoteKind.UNKNOWN, cause=self.fault.cause, permanent=self.fault.permanent)
