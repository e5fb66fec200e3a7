"""The connections of one process to all nodes: opening, giving up, leaving out. Shared by both drivers.

Only the thread that leads the fan-out (or the event loop's) calls in here; whatever thread opens a connection leaves
it behind for them. A node that fails is left out for a short, growing, jittered pause, and reconnected in the
background afterwards; but where no quorum is connected, all are tried at once and waited for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from redlock.errors import SettingsError
from redlock.events import NodeDown, NodeTimed, NodeUp, Observer, notify
from redlock.link import Link
from redlock.member import Member
from redlock.node import Node, NodeFaultError
from redlock.plan import Clock
from redlock.quorum import quorum_size

__all__ = ["OPENING_LINGER", "Members"]

OPENING_LINGER = 0.25
"""Seconds for which the first call waits for further nodes once a quorum is connected."""
_TIMING = 5.0


class Members:
    """All nodes, in the configured order; a driver says how it watches their sockets.

    Args:
        nodes: The nodes.
        timeout: Seconds for each step of connecting.
        clock: Seconds that never jump.
        observer: Is told when a node fails and when it is back.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, clock: Clock, observer: Observer) -> None:
        self.all = [Member(node, clock, index) for index, node in enumerate(nodes)]
        self._timeout = timeout
        self._clock = clock
        self._observer = observer
        self._closed = False
        self.is_complete = False
        """Whether all nodes are connected."""
        self.has_unsent = False
        """Whether a socket may have taken less than there was to be written."""
        self._timed_at = clock()
        self._misconfigured: SettingsError | None = None

    def watch(self, member: Member) -> None:
        """Begin to watch the socket of a link that was opened."""
        raise NotImplementedError

    def unwatch(self, member: Member) -> None:
        """Stop watching the socket of a link that is about to be closed, if it is watched."""
        raise NotImplementedError

    def begin(self, opening: Callable[[], None], *, may_wait: bool) -> None:
        """Open a connection on another thread; it may wait its turn where a quorum is connected."""
        raise NotImplementedError

    def on_opened(self) -> None:
        """Be told, on the opening thread, that a connection was opened or could not be."""
        raise NotImplementedError

    @property
    def is_short(self) -> bool:
        """Whether no quorum is connected."""
        return sum(member.link.is_open for member in self.all) < quorum_size(len(self.all))

    @property
    def due_at(self) -> float:
        """When the first link has to be given up if it does not answer."""
        return min(
            [deadline for member in self.all if (deadline := member.link.deadline) is not None], default=math.inf
        )

    @property
    def is_opening(self) -> bool:
        """Whether a connection is being opened."""
        return any(member.is_opening for member in self.all)

    @property
    def is_owing(self) -> bool:
        """Whether some node that cannot be reached has still to be told something."""
        now = self._clock()
        return any(worth_until > now for member in self.all for worth_until, _ in list(member.owed))

    def open_some(self) -> bool:
        """Begin to open what may be opened by now; return whether it has to be waited for, for lack of a quorum.

        Raises:
            SettingsError: Two nodes turned out to be the same server; from then on always.
        """
        if self._misconfigured is not None:
            raise self._misconfigured
        if self._closed:
            return False
        self.adopt()
        now = self._clock()
        is_short = self.is_short
        for member in self.all:
            if not member.link.is_open and not member.is_opening and (is_short or member.retry_at <= now):
                member.is_opening = True
                try:
                    self.begin(functools.partial(self._open, member), may_wait=not is_short)
                except BaseException as error:  # no thread is to be had, or an interrupt
                    member.opened = NodeFaultError(f"{type(error).__name__}: {error}")
                    if not isinstance(error, Exception):
                        raise
        return is_short

    def _open(self, member: Member) -> None:
        link = Link(member.node, self._clock, member.index)
        try:
            link.open(self._timeout)
            if self._closed:
                link.close(NodeFaultError("closed"))
            else:
                member.opened = link
        except NodeFaultError as fault:
            member.opened = fault
        except BaseException as error:
            member.opened = NodeFaultError(f"{type(error).__name__}: {error}")
            raise
        finally:
            self.on_opened()

    def adopt(self) -> None:
        """Take over what the opening threads have left behind.

        Raises:
            SettingsError: Two nodes turn out to be the same server.
        """
        for member in self.all:
            result = member.opened
            if result is None:
                continue
            member.opened, member.is_opening = None, False
            if isinstance(result, NodeFaultError):
                self._failed(member, result)
                continue
            if member.link.is_open:
                result.close(NodeFaultError("there is one already"))
                continue
            self._check_distinct(member, result)
            was_down = member.fault is not None
            member.link, member.fault, member.failures = result, None, 0
            self.watch(member)
            member.pay(self._clock(), self._timeout)
            self.is_complete = all(other.link.is_open for other in self.all)
            if was_down:
                notify(self._observer, NodeUp(member.node.name))  # last, as in `drop`

    def _check_distinct(self, member: Member, link: Link) -> None:
        if "same_server" in member.node.tolerated:
            return
        for other in self.all:
            if other is not member and other.link.is_open and link.run_id and other.link.run_id == link.run_id:
                link.close(NodeFaultError("listed twice"))
                self._misconfigured = SettingsError(
                    f"nodes {other.node.name} and {member.node.name} are the same server (run id {link.run_id}); "
                    "a majority must be of independent servers"
                )
                raise self._misconfigured

    def flush(self) -> None:
        """Write what was queued on the links, as far as the sockets take it."""
        for member in self.all:
            self.guarded(member, member.link.flush)

    def guarded(self, member: Member, step: Callable[[], None]) -> None:
        """Do one step on a member's link; drop it if that fails."""
        try:
            step()
        except NodeFaultError as fault:
            self.drop(member, fault)
        if member.link.wants_to_write:
            self.has_unsent = True

    def expire(self, now: float) -> None:
        """Give up links whose oldest command is overdue."""
        for member in self.all:
            if (deadline := member.link.deadline) is not None and deadline <= now:
                self.drop(member, NodeFaultError("no reply in time", is_overdue=True))
        if now - self._timed_at >= _TIMING:
            self._timed_at = now
            for member in self.all:
                if member.link.is_open and member.link.usual:
                    notify(self._observer, NodeTimed(member.node.name, member.link.usual))

    def drop_in_use(self, cause: str) -> None:
        """Give up all links on which something is under way."""
        for member in self.all:
            if member.link.deadline is not None or member.link.wants_to_write:
                self.drop(member, NodeFaultError(cause, is_overdue=True))

    def drop(self, member: Member, fault: NodeFaultError) -> None:
        """Give a member's link up and leave it out for a while."""
        self.is_complete = False
        if member.link.is_open:
            self.unwatch(member)
        owed, now = member.link.close(fault), self._clock()
        for command in owed:
            member.owe(command, now)
        self._failed(member, fault)  # last: an interrupt may hit the observer

    def _failed(self, member: Member, fault: NodeFaultError) -> None:
        is_first = member.fault is None
        member.fault = fault
        pause = member.pause()
        member.retry_at = self._clock() + pause
        if is_first:
            notify(self._observer, NodeDown(member.node.name, fault.cause, pause))

    def close(self) -> None:
        """Close all links, each after its undo, also those that are just being opened."""
        self._closed, self.is_complete = True, False
        for member in self.all:
            opened, member.opened = member.opened, None
            if isinstance(opened, Link):
                opened.close(NodeFaultError("closed"))
            if member.link.is_open:
                self.unwatch(member)
            member.link.close(NodeFaultError("closed", is_overdue=True))

    def abandon(self) -> None:
        """Forget all links without a word to the servers: after a fork they are the parent's."""
        for member in self.all:
            member.link.abandon()
