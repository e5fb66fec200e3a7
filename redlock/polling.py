"""Members whose sockets are polled by whichever thread leads."""

from __future__ import annotations

import math
import os
import select
import threading
import weakref
from collections.abc import Callable, Sequence

from redlock.events import Observer
from redlock.helper import Helper
from redlock.member import Member
from redlock.members import OPENING_LINGER, Members
from redlock.node import Node
from redlock.plan import Clock

__all__ = ["PolledMembers"]

_IDLE = 0.02
"""Seconds after which the sockets are looked at before they are written to."""


class PolledMembers(Members):
    """Members, with the waiting of the thread driver; arguments as for `Members`, and who opens connections."""

    def __init__(self, nodes: Sequence[Node], timeout: float, clock: Clock, observer: Observer, helper: Helper) -> None:
        super().__init__(nodes, timeout, clock, observer)
        self._helper = helper
        self._opened = threading.Event()
        self._poll = select.poll()
        self._by_fd: dict[int, Member] = {}
        self._looked_at = 0.0
        self._waker: tuple[int, int] | None = None
        self.waits_since = math.inf
        """Since when the leading thread waits for the sockets; never, if it does not."""
        self._is_disturbed = False

    def watch(self, member: Member) -> None:
        """Begin to poll a socket."""
        self._by_fd[member.link.fileno] = member
        self._poll.register(member.link.fileno, select.POLLIN)

    def unwatch(self, member: Member) -> None:
        """Stop polling a socket, if it is polled."""
        if self._by_fd.pop(member.link.fileno, None) is not None:
            self._poll.unregister(member.link.fileno)

    def begin(self, opening: Callable[[], None], *, may_wait: bool) -> None:
        """Let the helper open a connection."""
        self._helper.do(opening, may_wait=may_wait)

    def on_opened(self) -> None:
        """Wake the leading thread."""
        self._opened.set()

    def disturb(self) -> None:
        """Make the thread that polls look up: from any thread."""
        if self._waker is not None and not self._is_disturbed:
            self._is_disturbed = True
            os.write(self._waker[1], b"!")

    @property
    def is_ready(self) -> bool:
        """Whether all nodes are connected, and were looked at a moment ago."""
        return self.is_complete and self._clock() - self._looked_at <= _IDLE

    def connect(self, deadline: float, *, waits_for_all: bool) -> None:
        """Open what may be opened; wait for it, for half of the time until a moment, only where no quorum is connected.

        The other half is for the nodes that are connected by then.
        """
        if self._waker is None:
            self._waker = os.pipe()
            weakref.finalize(self, _close_both, *self._waker)
            self._poll.register(self._waker[0], select.POLLIN)
        if self._clock() - self._looked_at > _IDLE:
            self.exchange(0.0)  # a server that closed an idle connection should not cost a vote
        is_short = self.open_some()
        if not is_short and not waits_for_all:
            return
        deadline -= (deadline - self._clock()) / 2
        while self.is_opening and (left := deadline - self._clock()) > 0:
            self._opened.wait(left if self.is_short or waits_for_all else min(left, OPENING_LINGER))
            was_opened = self._opened.is_set()
            self._opened.clear()
            self.adopt()
            if not was_opened:
                break

    def exchange(self, until: float, waiting: Sequence[object] = ()) -> None:
        """Wait until a node can be read or written, or until a moment, and read and write.

        Args:
            until: The moment, by the clock.
            waiting: Whoever is in there, or comes in later and disturbs, is not kept waiting.
        """
        if self.has_unsent:
            self.has_unsent = False
            for member in self.all:
                if member.link.wants_to_write:
                    self._poll.modify(member.link.fileno, select.POLLIN | select.POLLOUT)
        now = self._looked_at = self.waits_since = self._clock()
        events = self._poll.poll(0 if waiting or until <= now else math.ceil((until - now) * 1000))
        self.waits_since = math.inf
        for fd, event in events:
            if fd not in self._by_fd:
                self._is_disturbed = False  # before the byte is gone: who comes now writes another
                os.read(fd, 1)
                continue
            member = self._by_fd[fd]
            if event & select.POLLOUT:
                self._poll.modify(fd, select.POLLIN)
                self.guarded(member, member.link.flush)
            if event & ~select.POLLOUT:
                self.guarded(member, member.link.receive)


def _close_both(one: int, other: int) -> None:
    os.close(one)
    os.close(other)
