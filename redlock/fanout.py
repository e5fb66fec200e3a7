"""One thread asks all nodes: the fan-out that every thread of a process shares.

Each node has one FIFO connection. Whichever thread finds nobody at it leads: it writes the commands of all waiting
threads as one pipeline per node, reads the replies and hands them out. When its own are decided it passes the lead on
to a thread that still waits, together with the connections and what is in flight on them.

- Nothing waits without a bound: a broadcast ends at its time-out, whatever sockets and nodes do.
- A node that fails is left out for a short, growing pause, during which it counts as unknown; but when no quorum could
  be reached without them, all are asked. Reconnecting happens on a thread of its own that ends with the attempt.
- The lead is left through `finally` only. An exception that hits the leading thread (an interrupt of the job that it
  runs for) closes the connections in use, each after its undo, and everybody who waits gets an unknown vote.
- After a fork the child has connections of its own; the parent's are left alone.
"""

from __future__ import annotations

import math
import os
import random
import select
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from redlock.errors import SettingsError
from redlock.events import NodeDown, NodeUp, Observer, notify
from redlock.link import Link, Slot
from redlock.node import Node, NodeFaultError, vote
from redlock.plan import Broadcast, Clock
from redlock.quorum import Vote, VoteKind, quorum_size

__all__ = ["Fanout"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds for which a node that failed is left out: doubled at each failure in a row, with jitter."""
_GRACE = 0.05
"""Seconds after its deadline at which a waiting thread stops to rely on the leading one."""


class _Question:
    """One broadcast of one thread, until it is decided."""

    __slots__ = ("broadcast", "deadline", "is_open", "party", "votes")

    def __init__(self, broadcast: Broadcast, deadline: float, party: _Party) -> None:
        self.broadcast = broadcast
        self.deadline = deadline
        self.party = party
        self.votes: list[Vote | None] = [None] * len(broadcast.commands)
        self.is_open = True

    def settle(self) -> None:
        """Decide with the votes that are there; wake the thread if this was its last question."""
        if self.is_open:
            self.is_open = False
            self.party.settled()


class _Party:
    """The questions that one thread asks at once, and how it is woken."""

    __slots__ = ("_open", "_wake", "questions")

    def __init__(self, broadcasts: Sequence[Broadcast], now: float) -> None:
        self.questions = [_Question(broadcast, now + broadcast.timeout, self) for broadcast in broadcasts]
        self._open = len(self.questions)
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def is_open(self) -> bool:
        return self._open > 0

    @property
    def deadline(self) -> float:
        return max(question.deadline for question in self.questions)

    def settled(self) -> None:
        self._open -= 1
        if not self._open:
            self.wake()

    def wake(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def sleep(self, timeout: float) -> None:
        self._wake.acquire(timeout=max(0.0, timeout))


class _Member:
    """A node in the fan-out: its link, and when to try it again after a failure."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node = node
        self.link = Link(node, clock)
        self.fault: NodeFaultError | None = None
        self.failures = 0
        self.retry_at = -math.inf
        self.opening: threading.Thread | None = None
        self.opened: Link | NodeFaultError | None = None

    def pause(self) -> float:
        """Return how long to leave the node out after one more failure."""
        self.failures += 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.failures - 1, 10)) * random.uniform(0.75, 1.0)

    def unknown(self, cause: str | None = None) -> Vote:
        """Return the vote of this node while it does not answer."""
        if cause or self.fault is None:
            return Vote(self.node.name, VoteKind.UNKNOWN, cause=cause or "not connected yet")
        return Vote(self.node.name, VoteKind.UNKNOWN, cause=self.fault.cause, permanent=self.fault.permanent)


class Fanout:
    """The connections of one process to the configured nodes.

    Args:
        nodes: The nodes, in the order of the votes.
        timeout: Seconds for each step of connecting to a node.
        clock: Seconds that never jump.
        observer: Is told when a node fails and when it is back.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, clock: Clock, observer: Observer) -> None:
        self._nodes = tuple(nodes)
        self._timeout = timeout
        self._clock = clock
        self._observer = observer
        self._start_afresh()
        _FANOUTS.add(self)

    def _start_afresh(self) -> None:
        self._members = [_Member(node, self._clock) for node in self._nodes]
        self._mutex = threading.Lock()
        self._inbox: list[_Party] = []
        self._active: list[_Question] = []
        self._leader: _Party | None = None
        self._changed = threading.Event()
        self._poll = select.poll()
        self._by_fd: dict[int, _Member] = {}
        self._closed = False

    def _after_fork(self) -> None:
        for member in self._members:
            member.link.abandon()
        self._start_afresh()

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self._nodes]

    def ask(self, broadcasts: Sequence[Broadcast]) -> list[list[Vote]]:
        """Send broadcasts together and return the votes of each, one per node.

        Raises:
            SettingsError: Two of the configured nodes turned out to be one server, or this was closed.
        """
        if self._closed:
            raise SettingsError("closed: the connections to the nodes are not opened again")
        party = _Party(broadcasts, self._clock())
        try:
            with self._mutex:
                self._inbox.append(party)
                leads = self._leader is None
                if leads:
                    self._leader = party
            if leads or self._follow(party):
                self._lead(party)
        finally:
            self._leave(party)
        return [
            [vote or member.unknown("no reply in time") for vote, member in zip(question.votes, self._members, strict=True)]
            for question in party.questions
        ]

    def close(self) -> None:
        """Close all connections; whoever still waits gets unknown votes."""
        with self._mutex:
            self._closed = True
            free = self._leader is None
        if free:
            for member in self._members:
                self._drop(member, NodeFaultError("closed"), tell=False)

    # -- leading and following

    def _follow(self, party: _Party) -> bool:
        """Wait until the leading thread has the answers, or passes the lead on (True)."""
        while party.is_open:
            party.sleep(party.deadline + _GRACE - self._clock())
            with self._mutex:
                if self._leader is party:
                    return True
                if party.is_open and self._clock() >= party.deadline + _GRACE:
                    return False
        return False

    def _leave(self, party: _Party) -> None:
        """Stop waiting; pass the lead on if this thread has it."""
        for question in party.questions:
            question.settle()
        with self._mutex:
            if party in self._inbox:
                self._inbox.remove(party)
            if self._leader is not party:
                return
            waiting = [question.party for question in self._active if question.is_open] + self._inbox
            self._leader = waiting[0] if waiting else None
            if self._leader:
                self._leader.wake()

    def _lead(self, party: _Party) -> None:
        try:
            while party.is_open:
                self._take_in()
                self._exchange()
                self._expire()
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        """Leave nothing half done: undo and close what is in flight, and let nobody wait for it."""
        for member in self._members:
            if member.link.is_open and (member.link.deadline is not None or member.link.wants_to_write):
                self._drop(member, NodeFaultError("the thread that asked for all was interrupted"))
        for question in self._active:
            question.settle()
        self._active.clear()

    # -- one turn of the leading thread

    def _take_in(self) -> None:
        """Send what has come in since the last turn."""
        with self._mutex:
            parties, self._inbox = self._inbox, []
        if not parties:
            return
        self._connect(min(party.deadline for party in parties))
        for party in parties:
            for question in party.questions:
                self._send(question)
        for member in self._members:
            self._guarded(member, member.link.flush)

    def _send(self, question: _Question) -> None:
        self._active.append(question)
        for index, command in enumerate(question.broadcast.commands):
            member = self._members[index]
            if command is None:
                question.votes[index] = member.unknown("not asked")
            elif member.link.is_open:
                answer = _Answer(question, index, member)
                member.link.send(Slot(command, question.deadline, answer, answer.is_wanted))
            else:
                question.votes[index] = member.unknown()
        if question.broadcast.enough(question.votes):
            question.settle()

    def _exchange(self) -> None:
        """Wait until a node can be read or written, or something is overdue, and do it."""
        self._active = [question for question in self._active if question.is_open]
        if not self._active:
            return
        until = min(question.deadline for question in self._active)
        for member in self._members:
            if member.link.wants_to_write:
                self._poll.modify(member.link.fileno, select.POLLIN | select.POLLOUT)
        for fd, event in self._poll.poll(math.ceil(max(0.0, until - self._clock()) * 1000)):
            member = self._by_fd[fd]
            if event & select.POLLOUT:
                self._poll.modify(fd, select.POLLIN)
                self._guarded(member, member.link.flush)
            if event & ~select.POLLOUT:
                self._guarded(member, member.link.receive)

    def _expire(self) -> None:
        """Give up what is overdue: links whose oldest command has no reply, and questions past their time."""
        now = self._clock()
        for member in self._members:
            if (deadline := member.link.deadline) is not None and deadline <= now:
                self._drop(member, NodeFaultError("no reply in time"))
        for question in self._active:
            if question.deadline <= now:
                question.settle()

    def _guarded(self, member: _Member, step: Any) -> None:
        try:
            step()
        except NodeFaultError as fault:
            self._drop(member, fault)

    # -- connections

    def _drop(self, member: _Member, fault: NodeFaultError, tell: bool = True) -> None:
        """Close a member's link and leave it out for a while."""
        if member.link.is_open:
            self._by_fd.pop(member.link.fileno, None)
            self._poll.unregister(member.link.fileno)
        self._failed(member, fault, tell)
        member.link.close(fault)

    def _failed(self, member: _Member, fault: NodeFaultError, tell: bool = True) -> None:
        first = member.fault is None
        member.fault = fault
        pause = member.pause()
        member.retry_at = self._clock() + pause
        if first and tell:
            notify(self._observer, NodeDown(member.node.name, fault.cause, pause))

    def _connect(self, deadline: float) -> None:
        """Open what may be opened; wait for it only where no quorum is connected."""
        self._adopt()
        now = self._clock()
        closed = [member for member in self._members if not member.link.is_open]
        if not closed:
            return
        short = len(self._members) - len(closed) < quorum_size(len(self._members))
        for member in closed:
            if member.opening is None and (short or member.retry_at <= now):
                member.opening = threading.Thread(
                    target=self._open, args=(member, self._changed), name=f"redlock-connect-{member.node.name}", daemon=True
                )
                member.opening.start()
        while short and any(member.opening for member in self._members) and self._clock() < deadline:
            self._changed.wait(deadline - self._clock())
            self._adopt()

    def _open(self, member: _Member, changed: threading.Event) -> None:
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
            changed.set()

    def _adopt(self) -> None:
        """Take over what the connecting threads have brought."""
        self._changed.clear()
        for member in self._members:
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

    def _check_distinct(self, member: _Member, link: Link) -> None:
        for other in self._members:
            if other is not member and other.link.is_open and link.run_id and other.link.run_id == link.run_id:
                link.close(NodeFaultError("listed twice"))
                raise SettingsError(
                    f"nodes {other.node.name} and {member.node.name} are the same server (run id {link.run_id}); "
                    "a majority must be of independent servers"
                )


class _Answer:
    """Where one node's reply to one question goes."""

    __slots__ = ("_index", "_member", "_question")

    def __init__(self, question: _Question, index: int, member: _Member) -> None:
        self._question = question
        self._index = index
        self._member = member

    def __call__(self, reply: Any) -> None:
        question = self._question
        if not question.is_open:
            return
        name = self._member.node.name
        if isinstance(reply, NodeFaultError):
            question.votes[self._index] = Vote(name, VoteKind.UNKNOWN, cause=reply.cause, permanent=reply.permanent)
        else:
            question.votes[self._index] = vote(name, reply)
        if question.broadcast.enough(question.votes):
            question.settle()

    def is_wanted(self) -> bool:
        """Whether somebody still waits for the reply."""
        return self._question.is_open


_FANOUTS: weakref.WeakSet[Fanout] = weakref.WeakSet()


def _forget_in_child() -> None:
    for fanout in list(_FANOUTS):
        fanout._after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
