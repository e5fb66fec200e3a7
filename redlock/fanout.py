"""One thread asks all nodes: the fan-out that every thread of a process shares.

Each node has one FIFO connection. Whichever thread finds nobody at it leads: it writes the commands of all waiting
threads as one pipeline per node, reads the replies and hands them out. When its own are decided it passes the lead on
to a thread that still waits, together with the connections and what is in flight on them.

- Nothing waits without a bound: a broadcast ends at its time-out, whatever sockets and nodes do.
- The lead is left through `finally` only. An exception that hits the leading thread (an interrupt of the job that it
  runs for) closes the connections in use, each after its undo, and everybody who waits gets an unknown vote.
- After a fork the child has connections of its own; the parent's are left alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence

from redlock.errors import SettingsError
from redlock.events import Observer
from redlock.members import Member
from redlock.node import Node
from redlock.plan import Broadcast, Clock, nobody
from redlock.polling import PolledMembers
from redlock.question import Question, is_for_all
from redlock.quorum import Vote

__all__ = ["Fanout"]

_SWEEP_PAUSE = 0.05
"""Seconds between two looks after nodes that are owed something."""
_GRACE = 0.05
"""Seconds after its deadline at which a waiting thread stops to rely on the leading one."""


class _Party:
    """The questions that one thread asks at once, and how it is woken."""

    __slots__ = ("_open", "_wake", "questions")

    def __init__(self, broadcasts: Sequence[Broadcast], members: Sequence[Member], clock: Clock) -> None:
        self.questions = [Question(broadcast, members, clock, self._settled) for broadcast in broadcasts]
        self._open = len(self.questions)
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def is_open(self) -> bool:
        return self._open > 0

    @property
    def deadline(self) -> float:
        return max(question.overdue_at for question in self.questions)

    def give_up(self) -> None:
        """Settle what is open with the votes that are there."""
        for question in self.questions:
            question.settle()

    def _settled(self) -> None:
        self._open -= 1
        if not self._open:
            self.wake()

    def wake(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def sleep(self, timeout: float) -> None:
        self._wake.acquire(timeout=max(0.0, timeout))


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
        self._members = PolledMembers(self._nodes, self._timeout, self._clock, self._observer)
        self._mutex = threading.Lock()
        self._inbox: list[_Party] = []
        self._active: list[_Party] = []
        self._leader: _Party | None = None
        self._sweeper: threading.Thread | None = None
        self._refuses = self._closed = False

    def after_fork(self) -> None:
        """Start afresh in a child process."""
        self._members.abandon()
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
        if self._refuses and any(broadcast.enough is not nobody for broadcast in broadcasts):
            raise SettingsError("closed: the connections to the nodes are not opened again")
        party = _Party(broadcasts, self._members.all, self._clock)
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
        return [question.result() for question in party.questions]

    def refuse(self) -> None:
        """Take no more questions, and let nobody wait; what only takes something back is still sent."""
        if not self._refuses:
            self._refuses = True
            self._members.wake()

    def close(self) -> None:
        """Close all connections; whoever still waits gets unknown votes."""
        self._refuses = True
        with self._mutex:
            if self._leader is None and not self._closed:
                self._members.close()
            self._closed = True

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
        party.give_up()
        with self._mutex:
            if party in self._inbox:
                self._inbox.remove(party)
            if self._leader is not party:
                return
            self._leader = next((other for other in self._active + self._inbox if other.is_open), None)
            if self._leader:
                self._leader.wake()

    def _lead(self, party: _Party) -> None:
        try:
            while party.is_open:
                self._take_in()
                if party.is_open:
                    self._exchange()
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        """Leave nothing half done: undo and close what is in flight, and let nobody wait for it."""
        self._members.drop_in_use("the thread that asked for all was interrupted")
        for party in self._active:
            party.give_up()
        self._active.clear()

    # -- one turn of the leading thread

    def _take_in(self) -> None:
        """Send what has come in since the last turn."""
        with self._mutex:
            parties, self._inbox = self._inbox, []
            self._active += parties
        if not parties:
            return
        questions = [question for party in parties for question in party.questions]
        waiting = [question.overdue_at for question in questions if question.broadcast.enough is not nobody]
        waits_for_all = any(is_for_all(question.broadcast) for question in questions)
        self._members.connect(min(waiting, default=self._clock()), waits_for_all=waits_for_all)
        for question in questions:
            question.send()
        self._members.flush()
        if self._sweeper is None and self._members.is_owing:
            self._sweeper = threading.Thread(target=self._sweep, name="redlock-sweeper", daemon=True)
            self._sweeper.start()

    def _exchange(self) -> None:
        """Read and write until the next answer or deadline."""
        self._active = [party for party in self._active if party.is_open]
        waiting = [question for party in self._active for question in party.questions if question.is_open]
        if waiting:
            self._members.exchange(min(question.deadline for question in waiting))
        now = self._clock()
        self._members.expire(now)
        for question in waiting:
            if question.deadline <= now or self._refuses:
                question.settle()

    # -- what nodes that were away have still to be told

    def _sweep(self) -> None:
        """Come by until nothing is owed any more: each turn of a leading thread reconnects and sends what is owed."""
        poke = Broadcast((None,) * len(self._nodes), self._timeout, nobody)
        while not self._closed and self._members.is_owing:
            time.sleep(_SWEEP_PAUSE)
            with contextlib.suppress(SettingsError):
                self.ask([poke])
        self._sweeper = None


_FANOUTS: weakref.WeakSet[Fanout] = weakref.WeakSet()


def _forget_in_child() -> None:
    for fanout in list(_FANOUTS):
        fanout.after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
