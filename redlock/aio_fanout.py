"""The fan-out of the asyncio driver: the same links and questions, watched by an event loop.

Everything runs on the loop, so nobody has to lead. What is asked within one turn of the loop leaves as one pipeline per
node. Only connecting happens elsewhere, on a helper thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from redlock.errors import SettingsError
from redlock.events import Observer
from redlock.forking import starts_afresh_in_children
from redlock.helper import Helper
from redlock.member import Member
from redlock.members import OPENING_LINGER, Members
from redlock.node import Node
from redlock.plan import Broadcast, Clock, nobody
from redlock.question import Question, is_for_all
from redlock.quorum import Vote

__all__ = ["AsyncFanout"]

_SWEEP_PAUSE = 0.05
"""Seconds between two looks after nodes that are owed something."""


class _WatchedMembers(Members):
    """Members whose sockets an event loop watches."""

    def __init__(
        self, nodes: Sequence[Node], timeout: float, clock: Clock, observer: Observer, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(nodes, timeout, clock, observer)
        self._loop = loop
        self._helper = Helper()
        self.opened = asyncio.Event()

    def watch(self, member: Member) -> None:
        self._loop.add_reader(member.link.fileno, self.guarded, member, member.link.receive)

    def unwatch(self, member: Member) -> None:
        self._loop.remove_reader(member.link.fileno)
        self._loop.remove_writer(member.link.fileno)

    def begin(self, opening: Callable[[], None], *, may_wait: bool) -> None:
        self._helper.do(opening, may_wait=may_wait)

    def on_opened(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.opened.set)

    def close(self) -> None:
        super().close()
        self._helper.end()

    async def connect(self, deadline: float, *, waits_for_all: bool) -> None:
        """Open what may be opened; wait for it, until a moment, only where no quorum is connected."""
        is_short = self.open_some()
        if not is_short and not waits_for_all:
            return
        deadline -= (deadline - self._clock()) / 2  # the other half is for the nodes that are connected by then
        while self.is_opening and (left := deadline - self._clock()) > 0:
            try:
                await asyncio.wait_for(
                    self.opened.wait(), left if self.is_short or waits_for_all else min(left, OPENING_LINGER)
                )
            except asyncio.TimeoutError:
                break
            self.opened.clear()
            self.adopt()

    def write(self) -> None:
        """Write what was queued; let the loop say when a full socket takes more."""
        self.flush()
        for member in self.all:
            if member.link.wants_to_write:
                self._loop.add_writer(member.link.fileno, self._write_more, member)

    def _write_more(self, member: Member) -> None:
        self._loop.remove_writer(member.link.fileno)
        self.write()


class AsyncFanout:
    """The connections of one process and event loop to the configured nodes.

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
        self._refuses = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.after_fork()
        starts_afresh_in_children(self)

    def after_fork(self) -> None:
        """Start afresh, in a child process or on another event loop."""
        if self._loop is not None:
            self._members.abandon()
        self._loop = None
        self._members: _WatchedMembers
        self._open: set[Question] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self._nodes]

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.after_fork()
            self._loop = loop
            self._members = _WatchedMembers(self._nodes, self._timeout, self._clock, self._observer, loop)

    async def ask(self, broadcasts: Sequence[Broadcast]) -> list[list[Vote]]:
        """Send broadcasts together and return the votes of each, one per node.

        Raises:
            SettingsError: Two of the configured nodes turned out to be one server, or this was closed.
        """
        if self._refuses and any(broadcast.enough is not nobody for broadcast in broadcasts):
            raise SettingsError("closed: the connections to the nodes are not opened again")
        self._bind()
        waits_for_all = any(is_for_all(broadcast) for broadcast in broadcasts)
        waits = [broadcast.timeout for broadcast in broadcasts if broadcast.enough is not nobody]
        deadline = self._clock() + min(waits, default=0.0)
        await self._members.connect(deadline, waits_for_all=waits_for_all)
        done = asyncio.Event()
        questions: list[Question] = []

        def settled() -> None:
            if not any(question.is_open for question in questions):
                done.set()

        members = self._members.all
        questions += [Question(each, members, self._clock, self._set_timer, settled) for each in broadcasts]
        try:
            for question in questions:
                self._open.add(question)
                question.send()
            self._flush_soon(now=done.is_set())
            self._set_timer()
            if not done.is_set():
                await done.wait()
        finally:
            for question in questions:
                question.settle()
                self._open.discard(question)
        return [question.result() for question in questions]

    def _flush_soon(self, *, now: bool) -> None:
        """Write at the end of this turn of the loop, together with what others ask in it; or now."""
        if now:
            self._flush()
        elif not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._members.write()
        if self._sweeper is None and self._loop is not None and self._members.is_owing:
            self._sweeper = self._loop.create_task(self._sweep())

    def _set_timer(self, _deadline: float | None = None) -> None:
        """Make sure that somebody looks when the next question is overdue."""
        if self._loop is None or not self._open:
            return
        until = min(question.deadline for question in self._open)
        left = max(0.0, until - self._clock())
        if self._timer is None or self._timer.when() > self._loop.time() + left:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(left, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        self._members.expire(now)
        for question in list(self._open):
            if question.deadline <= now:
                question.settle()
                self._open.discard(question)
        self._set_timer()

    async def _sweep(self) -> None:
        """Come by until nothing is owed any more."""
        poke = Broadcast((None,) * len(self._nodes), self._timeout, nobody)
        while not self._closed and self._members.is_owing:
            await asyncio.sleep(_SWEEP_PAUSE)
            await self.ask([poke])
        self._sweeper = None

    def refuse(self) -> None:
        """Take no more questions, and let nobody wait; what only takes something back is still sent."""
        self._refuses = True
        for question in list(self._open):
            question.settle()

    def close(self) -> None:
        """Close all connections; whoever still waits gets unknown votes."""
        self._refuses = self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._loop is not None:
            self._members.close()
            for question in list(self._open):
                question.settle()
