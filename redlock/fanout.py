"""One thread asks all nodes: the fan-out that every thread of a process shares.

Each node has one FIFO connection. Whichever thread finds nobody at it leads: it writes the commands of all waiting
threads as one pipeline per node, reads the replies and hands them out. When its own are decided it passes the lead on
to a thread that still waits, together with the connections and what is in flight on them.

- Who asks while the leading thread waits for answers disturbs it, but for a moment in which these mostly come.
- Nothing waits without a bound: a broadcast ends at its time-out, whatever sockets and nodes do.
- The lead is left through `finally` only. An exception that hits the leading thread (an interrupt of the job that it
  runs for) closes the connections in use, each after its undo, and everybody who waits gets an unknown vote.
- After a fork the child has connections of its own; the parent's are left alone.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence

from redlock.errors import SettingsError
from redlock.events import Observer
from redlock.forking import starts_afresh_in_children
from redlock.helper import Helper
from redlock.node import Node
from redlock.party import Party
from redlock.plan import Broadcast, Clock, nobody
from redlock.polling import PolledMembers
from redlock.question import Question, is_for_all
from redlock.quorum import Vote
from redlock.sweeper import Sweeper

__all__ = ["Fanout"]

_GRACE = 0.05
"""Seconds after its deadline at which a waiting thread stops to rely on the leading one."""
_PATIENCE = 0.0003
"""Seconds that the leading thread waits for answers before a new question disturbs it: most come sooner."""
_LONGEST_PATIENCE = 0.003
"""Seconds after which a question that came sooner than that, and is still there, does so."""


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
        starts_afresh_in_children(self)

    def _start_afresh(self) -> None:
        self._helper = Helper()
        self._members = PolledMembers(self._nodes, self._timeout, self._clock, self._observer, self._helper)
        self._mutex = threading.Lock()
        self._inbox: list[Party] = []
        self._active: list[Party] = []
        self._leader: Party | None = None
        self._due_at = math.inf
        self._sweeper = Sweeper(self._helper, self._is_owing, self._come_by)
        self._refuses = self._closed = False

    def after_fork(self) -> None:
        """Start afresh in a child process."""
        parents = self._members
        self._start_afresh()
        parents.abandon()

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
        party = Party(broadcasts, self._members.all, self._clock, self._hurry)
        try:
            try:
                self._join(party)
            finally:
                self._leave(party)
        except BaseException:
            self._leave(party)  # again: an interrupt may have hit that very step
            raise
        return [question.result() for question in party.questions]

    def refuse(self) -> None:
        """Take no more questions, and let nobody wait; what only takes something back is still sent."""
        if not self._refuses:
            self._refuses = True
            self._members.disturb()

    def close(self) -> None:
        """Close all connections, or let whoever leads do it at the end; whoever still waits gets unknown votes."""
        self._refuses = True
        with self._mutex:
            if self._leader is None and not self._closed:
                self._members.close()
            self._closed = True
        self._helper.end()

    # -- leading and following

    def _join(self, party: Party) -> None:
        with self._mutex:
            self._inbox.append(party)
            leads = self._leader is None
            if leads:
                self._leader = party
        if leads or self._follow(party):
            self._lead(party)

    def _follow(self, party: Party) -> bool:
        """Wait until the leading thread has the answers, or passes the lead on (True)."""
        now = self._clock()
        if now - self._members.waits_since >= _PATIENCE:
            self._members.disturb()
        until = now + _LONGEST_PATIENCE
        while party.is_open:
            party.sleep(until - self._clock())
            if not party.is_open:
                break
            with self._mutex:
                if self._leader is party:
                    return True
            if self._clock() >= party.deadline + _GRACE:
                break
            if party in self._inbox:
                self._members.disturb()
            until = party.deadline + _GRACE
        return False

    def _leave(self, party: Party) -> None:
        """Stop waiting; pass the lead on if this thread has it. Where it is interrupted it can be done again."""
        party.give_up()
        with self._mutex:
            if party in self._inbox:
                self._inbox.remove(party)
            if self._leader is not party:
                return
            following = next((other for other in self._active + self._inbox if other.is_open), None)
            if following is not None:
                following.wake()  # first: whoever has its answers can wait for the one who fetches those of others
            self._wake_settled()
            if following is None and self._closed:
                self._members.close()
            self._leader = following

    def _wake_settled(self) -> None:
        """Wake those who have their answers, and forget them: in this order, for a second time does no harm."""
        settled = [party for party in self._active if not party.is_open]
        for party in settled:
            party.wake()
        if settled:
            self._active = [party for party in self._active if party.is_open]

    def _lead(self, party: Party) -> None:
        try:
            while party.is_open:
                self._take_in()
                self._wake_settled()
                if party.is_open:
                    self._exchange()
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        """Leave nothing half done: undo and close what is in flight, and let nobody wait for it."""
        try:
            self._members.drop_in_use("the thread that asked for all was interrupted")
        finally:
            for party in self._active:
                party.give_up()

    # -- one turn of the leading thread

    def _take_in(self) -> None:
        """Send what has come in since the last turn."""
        if not self._inbox:
            return
        with self._mutex:
            parties, self._inbox = self._inbox, []
            self._active += parties
        questions = [question for party in parties for question in party.questions]
        if not self._members.is_ready:
            self._connect(questions)
        self._hurry(min([question.overdue_at for question in questions]))
        for question in questions:
            question.send()
        self._members.flush()
        if not self._members.is_complete:
            self._sweeper.begin()

    def _connect(self, questions: Sequence[Question]) -> None:
        waiting = [question.overdue_at for question in questions if question.broadcast.enough is not nobody]
        waits_for_all = any(is_for_all(question.broadcast) for question in questions)
        self._members.connect(min(waiting, default=self._clock()), waits_for_all=waits_for_all)
        self._hurry(self._members.due_at)  # what was owed is on its way, too

    def _hurry(self, deadline: float) -> None:
        """Look after what is overdue at a moment, or sooner."""
        self._due_at = min(self._due_at, deadline)

    def _exchange(self) -> None:
        """Read and write until the next answer or deadline."""
        self._members.exchange(self._due_at, self._inbox)
        now = self._clock()
        if now >= self._due_at or self._refuses:
            self._settle_overdue(now)

    def _settle_overdue(self, now: float) -> None:
        self._members.expire(now)
        waiting = [question for party in self._active for question in party.questions if question.is_open]
        for question in waiting:
            if question.deadline <= now or self._refuses:
                question.settle()
        self._due_at = self._members.due_at
        for question in waiting:
            if question.is_open:
                self._hurry(question.deadline)

    # -- what nodes that were away have still to be told

    def _is_owing(self) -> bool:
        return not self._closed and self._members.is_owing

    def _come_by(self) -> None:
        """Ask nobody: each turn of a leading thread reconnects and sends what is owed."""
        if not self._closed:
            with contextlib.suppress(SettingsError):
                self.ask([Broadcast((None,) * len(self._nodes), self._timeout, nobody)])
