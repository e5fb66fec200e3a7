"""The connections of one process to all nodes: opening, polling, giving up, leaving out.

Only the thread that leads the fan-out calls in here; the threads that open a connection leave their result behind and
end. A node that fails is left out for a short, growing, jittered pause, and reconnected in the background afterwards;
but where no quorum is connected, all are tried at once and waited for.
"""

from __future__ import annotations

import math
import random
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence

from redlock.errors import SettingsError
from redlock.events import NodeDown, NodeUp, Observer, notify
from redlock.link import Link, Slot
from redlock.node import Node, NodeFaultError
from redlock.plan import Clock, Command
from redlock.quorum import Vote, VoteKind, quorum_size

__all__ = ["Member", "Members"]

_MOST_OWED = 10_000
"""Commands that are kept for a node that cannot be reached; beyond that the oldest are forgotten."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds for which a node that failed is left out: doubled at each failure in a row, with jitter."""


class Member:
    """One node: its link, and when to try it again after a failure."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node = node
        self.link = Link(node, clock)
        self.owed: deque[tuple[float, Command]] = deque(maxlen=_MOST_OWED)
        self.fault: NodeFaultError | None = None
        self.failures = 0
        self.retry_at = -math.inf
        self.opening: threading.Thread | None = None
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
                self.link.send(Slot(command, None, 0, now, now + timeout))

    def unknown(self, cause: str | None = None) -> Vote:
        """Return this node's vote while it gives none: for the given cause, or for what is wrong with it."""
        if cause or self.fault is None:
            return Vote(self.node.name, VoteKind.UNKNOWN, cause=cause or "not connected yet")
        return Vote(self.node.name, VoteKind.UNKNOWN, cause=self.fault.cause, permanent=self.fault.permanent)


class Members:
    """All nodes, in the configured order.

    Args:
        nodes: The nodes.
        timeout: Seconds for each step of connecting.
        clock: Seconds that never jump.
        observer: Is told when a node fails and when it is back.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, clock: Clock, observer: Observer) -> None:
        self.all = [Member(node, clock) for node in nodes]
        self._timeout = timeout
        self._clock = clock
        self._observer = observer
        self._changed = threading.Event()
        self._poll = select.poll()
        self._by_fd: dict[int, Member] = {}

    @property
    def is_owing(self) -> bool:
        """Whether some node that cannot be reached has still to be told something."""
        now = self._clock()
        return any(worth_until > now for member in self.all for worth_until, _ in list(member.owed))

    def flush(self) -> None:
        """Write what was queued on the links, as far as the sockets take it."""
        for member in self.all:
            self._guarded(member, member.link.flush)

    def exchange(self, until: float) -> None:
        """Wait until a node can be read or written, or until a moment, and read and write."""
        for member in self.all:
            if member.link.wants_to_write:
                self._poll.modify(member.link.fileno, select.POLLIN | select.POLLOUT)
        for fd, event in self._poll.poll(math.ceil(max(0.0, until - self._clock()) * 1000)):
            member = self._by_fd[fd]
            if event & select.POLLOUT:
                self._poll.modify(fd, select.POLLIN)
                self._guarded(member, member.link.flush)
            if event & ~select.POLLOUT:
                self._guarded(member, member.link.receive)

    def expire(self, now: float) -> None:
        """Give up links whose oldest command is overdue."""
        for member in self.all:
            if (deadline := member.link.deadline) is not None and deadline <= now:
                self.drop(member, NodeFaultError("no reply in time", is_overdue=True))

    def drop_in_use(self, cause: str) -> None:
        """Give up all links on which something is under way."""
        for member in self.all:
            if member.link.deadline is not None or member.link.wants_to_write:
                self.drop(member, NodeFaultError(cause, is_overdue=True))

    def close(self) -> None:
        """Give up all links, without telling anybody."""
        for member in self.all:
            member.link.close(NodeFaultError("closed", is_overdue=True))

    def abandon(self) -> None:
        """Forget all links without a word to the servers: after a fork they are the parent's."""
        for member in self.all:
            member.link.abandon()

    def drop(self, member: Member, fault: NodeFaultError) -> None:
        """Give a member's link up and leave it out for a while."""
        if member.link.is_open:
            del self._by_fd[member.link.fileno]
            self._poll.unregister(member.link.fileno)
        self._failed(member, fault)
        now = self._clock()
        for command in member.link.close(fault):
            member.owe(command, now)

    def _guarded(self, member: Member, step: Callable[[], None]) -> None:
        try:
            step()
        except NodeFaultError as fault:
            self.drop(member, fault)

    def _failed(self, member: Member, fault: NodeFaultError) -> None:
        is_first = member.fault is None
        member.fault = fault
        pause = member.pause()
        member.retry_at = self._clock() + pause
        if is_first:
            notify(self._observer, NodeDown(member.node.name, fault.cause, pause))

    def connect(self, deadline: float) -> None:
        """Open what may be opened; wait for it, until a moment, only where no quorum is connected.

        Raises:
            SettingsError: Two nodes turn out to be the same server.
        """
        self._adopt()
        now = self._clock()
        closed = [member for member in self.all if not member.link.is_open]
        is_short = len(self.all) - len(closed) < quorum_size(len(self.all))
        for member in closed:
            if member.opening is None and (is_short or member.retry_at <= now):
                name = f"redlock-connect-{member.node.name}"
                member.opening = threading.Thread(target=self._open, args=(member,), name=name, daemon=True)
                member.opening.start()
        while is_short and any(member.opening for member in self.all) and (left := deadline - self._clock()) > 0:
            self._changed.wait(left)
            self._adopt()

    def _open(self, member: Member) -> None:
        link = Link(member.node, self._clock)
        try:
            link.open(self._timeout)
            member.opened = link
        except NodeFaultError as fault:
            member.opened = fault
        except BaseException as error:
            member.opened = NodeFaultError(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._changed.set()

    def _adopt(self) -> None:
        """Take over what the opening threads have left behind."""
        self._changed.clear()
        for member in self.all:
            result = member.opened
            if result is None:
                continue
            member.opened = member.opening = None
            if isinstance(result, NodeFaultError):
                self._failed(member, result)
                continue
            self._check_distinct(member, result)
            if member.fault is not None:
                notify(self._observer, NodeUp(member.node.name))
            member.link, member.fault, member.failures = result, None, 0
            self._by_fd[result.fileno] = member
            self._poll.register(result.fileno, select.POLLIN)
            member.pay(self._clock(), self._timeout)

    def _check_distinct(self, member: Member, link: Link) -> None:
        for other in self.all:
            if other is not member and other.link.is_open and link.run_id and other.link.run_id == link.run_id:
                link.close(NodeFaultError("listed twice"))
                raise SettingsError(
                    f"nodes {other.node.name} and {member.node.name} are the same server (run id {link.run_id}); "
                    "a majority must be of independent servers"
                )
