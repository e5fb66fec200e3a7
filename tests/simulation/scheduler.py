"""Virtual time: an event heap, and processes that carry the shipping plans out over virtual connections.

A process does what the drivers do, in their order, with the shipping `Question`, `Member`, `Members` and `Link`; only
sockets, threads and waiting are replaced. It reads its sockets before it looks at deadlines, as a process does that was
stopped for a while; one that drives plans by threads reads only while it asks, one with an event loop always.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from redlock.members import OPENING_LINGER
from redlock.plan import Broadcast, Sleep, nobody
from redlock.question import Question, is_for_all
from redlock.quorum import VoteKind
from tests.simulation.history import History

if TYPE_CHECKING:
    from tests.simulation.sim_net import VirtualMembers

__all__ = ["InterruptedPlanError", "Process", "Scheduler", "Task"]

_SWEEP_PAUSE = 1.0
"""Seconds between two looks after nodes that are owed something; longer than the drivers', to save events."""
_TINY = 1e-6


class InterruptedPlanError(BaseException):
    """What is thrown into a plan that is interrupted."""


class _GoneError(BaseException):
    """What ends a plan whose process is gone: it must not go on, and a generator must not be left to the collector."""


class Scheduler:
    """Virtual time and everything that is going to happen in it.

    Args:
        seed: Of the random source for what the network and the clients do.
        traces: Whether to write down what happens, for people.
    """

    def __init__(self, seed: int, *, traces: bool = False) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self.history = History()
        self.seen: Counter[str] = Counter()
        self.tasks: list[Task] = []
        self.digest = 0
        self.lines: list[tuple[float, str, str]] | None = [] if traces else None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def true_time(self) -> float:
        """Return the time; nodes and processes see it through their clocks only."""
        return self.now

    def at(self, time: float, what: Callable[..., None], *args: Any) -> None:
        """Let something happen at a time, behind what else happens then."""
        self._count += 1
        heapq.heappush(self._heap, (max(self.now, time), self._count, what, args))

    def run(self, until: float, most: int = 50_000) -> None:
        """Let happen what is due until a time.

        Raises:
            RuntimeError: So many events that something must go in circles.
        """
        heap = self._heap
        for _ in range(most):
            if not heap or heap[0][0] > until:
                self.now = until
                return
            self.now, count, what, args = heapq.heappop(heap)
            self.digest = hash((self.digest, self.now, count))
            what(*args)
        raise RuntimeError(f"more than {most} events until {self.now}")

    def close(self) -> None:
        """End all plans."""
        for task in self.tasks:
            task.end()
        self._heap.clear()

    def tell(self, who: str, text: str) -> None:
        """Write a line into the timeline, if there is one."""
        if self.lines is not None:
            self.lines.append((self.now, who, text))


class _WatchedQuestion(Question):
    """The shipping question; notes when a reply counts that was read after its deadline."""

    __slots__ = ("history",)

    def answered(self, index: int, reply: Any, now: float) -> None:
        is_late = now >= self.overdue_at
        super().answered(index, reply, now)
        vote = self.votes[index]
        if is_late and self.is_open and vote is not None and vote.kind is not VoteKind.UNKNOWN:
            self.history.add("late_vote", 0.0, vote.node)


class _Ask:
    """Broadcasts that a task waits for; None as the task for a look after what is owed."""

    def __init__(self, process: Process, broadcasts: Sequence[Broadcast], task: Task | None) -> None:
        self.process = process
        self.broadcasts = broadcasts
        self.task = task
        self.questions: list[Question] = []
        self._open = len(broadcasts)
        self._is_connecting = False
        self._limit = 0.0
        self._lingers = self._waits_for_all = False

    def start(self) -> None:
        process = self.process
        self.questions = [
            _WatchedQuestion(broadcast, process.members.all, process.clock, process.arm, self._settled)
            for broadcast in self.broadcasts
        ]
        for question in self.questions:
            question.history = process.world.history
        process.asks.append(self)
        process.read()  # a server that closed an idle connection should not cost a vote
        is_short = process.members.open_some()
        self._waits_for_all = any(map(is_for_all, self.broadcasts))
        if not is_short and not self._waits_for_all:
            self._send()
            return
        now = process.clock()
        waiting = [question.overdue_at for question in self.questions if question.broadcast.enough is not nobody]
        self._limit = now + (min(waiting, default=now) - now) / 2
        self._is_connecting = True
        self.progress()
        process.arm()

    def progress(self) -> None:
        """Go on once there are connections, or no more time for them."""
        if not self._is_connecting:
            return
        members, now = self.process.members, self.process.clock()
        members.adopt()
        if members.is_opening and now < self._limit:
            if not members.is_short and not self._waits_for_all and not self._lingers:
                self._lingers = True
                self._limit = min(self._limit, now + OPENING_LINGER)
            return
        self._is_connecting = False
        self._send()

    @property
    def deadline(self) -> float:
        if self._is_connecting:
            return self._limit
        return min((question.deadline for question in self.questions if question.is_open), default=0.0)

    def expire(self, now: float) -> None:
        for question in self.questions:
            if question.is_open and question.deadline <= now and not self._is_connecting:
                question.settle()

    def give_up(self) -> None:
        self.task = None
        for question in self.questions:
            question.settle()

    def _send(self) -> None:
        process = self.process
        process.note_sent(self.broadcasts)
        for question in self.questions:
            if question.is_open:
                question.send()
        process.members.flush()
        process.sweep_later()
        process.arm()

    def _settled(self) -> None:
        self._open -= 1
        if self._open:
            return
        process = self.process
        if self in process.asks:
            process.asks.remove(self)
        task = self.task
        if task is not None:
            turn = task.turn
            process.on_ambush("settle")  # which may interrupt this very plan
            process.world.at(process.world.now, process.run, self._answer, task, turn)

    def _answer(self, task: Task, turn: int) -> None:
        if task.turn == turn:
            answers = [question.result() for question in self.questions]
            task.resume(answers[0] if task.asked_for_one else answers)


class Task:
    """A plan on its way through virtual time."""

    def __init__(self, process: Process, plan: Generator[Any, Any, Any]) -> None:
        self.process = process
        self.turn = 0
        self.asked_for_one = True
        self._plan: Generator[Any, Any, Any] | None = plan
        self._ask: _Ask | None = None
        process.tasks.append(self)
        process.world.tasks.append(self)
        process.world.at(process.world.now, process.run, self.resume, None)

    @property
    def is_over(self) -> bool:
        return self._plan is None

    def resume(self, value: Any) -> None:
        """Send the plan what it waited for."""
        if self._plan is not None:
            self._step(self._plan.send, value)

    def wake(self, turn: int) -> None:
        """End a sleep, unless it was interrupted."""
        if turn == self.turn:
            self.resume(None)

    def interrupt(self) -> None:
        """Throw an interruption into the plan; what it asks for then is still done."""
        if self._plan is None:
            return
        if self._ask is not None and self._ask in self.process.asks:
            ask = self._ask
            ask.give_up()
            if not self.process.reads_always:  # the leading thread was hit: nothing stays half done
                self.process.members.drop_in_use("interrupted")
        self._step(self._plan.throw, InterruptedPlanError())

    def end(self) -> None:
        """Never go on: the process is gone. What the plan still asks for is not done."""
        plan, self._plan = self._plan, None
        self.turn += 1
        with contextlib.suppress(StopIteration, _GoneError):
            while plan is not None:
                plan.throw(_GoneError())

    def _step(self, go_on: Callable[[Any], Any], value: Any) -> None:
        process = self.process
        self.turn += 1
        self._ask = None
        try:
            step = go_on(value)
        except (StopIteration, InterruptedPlanError):
            self._plan = None
            return
        if isinstance(step, Sleep):
            process.world.at(process.world.now + step.seconds / process.rate + _TINY, process.run, self.wake, self.turn)
            return
        self.asked_for_one = isinstance(step, Broadcast)
        ask = self._ask = _Ask(process, [step] if self.asked_for_one else step, self)
        turn = self.turn
        process.on_ambush("ask")  # which may interrupt this very plan
        process.run(self._start, ask, turn)

    def _start(self, ask: _Ask, turn: int) -> None:
        if self.turn == turn:
            ask.start()


class Process:
    """One client process: a clock, connections, plans; it can be paused, and killed.

    Args:
        world: Time.
        name: For the timeline.
        rate: How fast its clock runs; 1.0 is true.
        reads_always: Whether it reads replies also while it asks nothing, as an event loop does.
        members: Makes its connections.
    """

    def __init__(
        self,
        world: Scheduler,
        name: str,
        rate: float,
        *,
        reads_always: bool,
        members: Callable[[Process], VirtualMembers],
    ) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = world.rng.uniform(0.0, 1e6)
        self.reads_always = reads_always
        self.paused_until = -1.0
        self.is_alive = True
        self.asks: list[_Ask] = []
        self.tasks: list[Task] = []
        self.readable: set[int] = set()
        self.sent_at: dict[tuple[str, str], float] = {}
        """Clock reading before the first byte of the last round for a script and a token."""
        self.on_ambush: Callable[[str], None] = lambda _what: None
        self._timer_at = float("inf")
        self._wakes = False
        self._sweeps = False
        self.members = members(self)

    # -- its clock

    def clock(self) -> float:
        """Return its monotonic clock; it goes on in a pause."""
        return self.offset + self.world.now * self.rate

    def true(self, clock: float) -> float:
        """Return the simulation's time at which its clock shows a moment."""
        return (clock - self.offset) / self.rate

    # -- what befalls it

    def pause(self, seconds: float) -> None:
        """Do nothing for a while; the clock runs on."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def kill(self) -> None:
        """End at once; what is in flight stays in flight."""
        self.is_alive = False
        for task in self.tasks:
            task.end()
        self.members.vanish()

    # -- turns

    def run(self, what: Callable[..., None], *args: Any) -> None:
        """Do something now, or when the pause is over; never if it was killed."""
        if not self.is_alive:
            return
        if self.world.now < self.paused_until:
            self.world.seen["waited for a paused process"] += 1
            self.world.at(self.paused_until, self.run, what, *args)
        else:
            what(*args)

    def wake(self) -> None:
        """Look at sockets and deadlines in a moment."""
        if not self._wakes and self.is_alive:
            self._wakes = True
            self.world.at(max(self.world.now, self.paused_until), self._turn)

    def _turn(self) -> None:
        """What both drivers do when something happened: read, connect, give up what is overdue."""
        self._wakes = False
        if not self.is_alive:
            return
        if self.world.now < self.paused_until:
            self.wake()
            return
        if self.asks or self.reads_always:
            self.read()
        for ask in list(self.asks):
            ask.progress()
        if self.asks or self.reads_always:
            now = self.clock()
            self.members.expire(now)
            for ask in list(self.asks):
                ask.expire(now)
        self.arm()

    def read(self) -> None:
        """Read what lies in the sockets."""
        for index in sorted(self.readable):
            member = self.members.all[index]
            self.members.guarded(member, member.link.receive)
        self.readable.clear()

    def arm(self, _deadline: float | None = None) -> None:
        """Make sure that a turn comes at the next deadline."""
        if not self.asks:
            return
        due = max(self.world.now, self.true(min(ask.deadline for ask in self.asks)) + _TINY)
        if due < self._timer_at or self._timer_at <= self.world.now:
            self._timer_at = due
            self.world.at(due, self._on_timer, due)

    def _on_timer(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = float("inf")
        self.wake()

    def hears(self, index: int) -> None:
        """Be told that a socket can be read."""
        self.readable.add(index)
        if self.asks or self.reads_always:
            self.wake()

    def note_sent(self, broadcasts: Sequence[Broadcast]) -> None:
        """Remember when a round for a token left: what it grants is counted from there."""
        now = self.clock()
        for broadcast in broadcasts:
            command = next(filter(None, broadcast.commands), None)
            if command is not None and command.args:
                self.sent_at[command.script.name, str(command.args[0])] = now

    # -- what nodes that were away have still to be told

    def sweep_later(self) -> None:
        """Come by until nothing is owed any more."""
        if not self._sweeps and self.members.is_owing:
            self._sweeps = True
            self.world.at(self.world.now + _SWEEP_PAUSE, self.run, self._sweep)

    def _sweep(self) -> None:
        self._sweeps = False
        self.world.seen["swept"] += 1
        poke = Broadcast((None,) * len(self.members.all), self.members.timeout, nobody)
        _Ask(self, [poke], None).start()
        self.sweep_later()
