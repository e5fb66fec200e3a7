"""One broadcast on its way: who was asked, what came back, and when that is enough. Shared by both drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redlock.member import Member
from redlock.node import NodeFaultError
from redlock.plan import Broadcast, Clock, everybody, nobody
from redlock.quorum import Count, Vote, VoteKind
from redlock.resp import ReplyError
from redlock.slot import Slot
from redlock.wire import packed, vote

__all__ = ["Question", "is_for_all"]

_LINGER_FACTOR, _LEAST_LINGER = 3.0, 0.005
"""Once a quorum has answered, the others get this many times their usual time, and at least so many seconds."""


def is_for_all(broadcast: Broadcast) -> bool:
    """Return whether every node that can be had should be asked: for a check, or a bootstrap."""
    return broadcast.enough is everybody and broadcast.linger is None and None not in broadcast.commands


def _nothing() -> None:
    """Have nobody to tell."""


class Question:
    """A broadcast until it is settled.

    Args:
        broadcast: What is asked.
        members: The nodes.
        clock: Seconds.
        on_hurry: Called with the deadline when it was moved forward.
        on_settled: Called once, when it is decided, overdue or given up.
    Raises:
        UnicodeEncodeError, TypeError: A command cannot be packed: here, on the thread that asks.
    """

    __slots__ = (
        "_clock",
        "_members",
        "_on_hurry",
        "_on_settled",
        "_slots",
        "broadcast",
        "count",
        "deadline",
        "is_decided",
        "is_open",
        "overdue_at",
        "votes",
    )

    def __init__(
        self,
        broadcast: Broadcast,
        members: Sequence[Member],
        clock: Clock,
        on_hurry: Callable[[float], None],
        on_settled: Callable[[], None] = _nothing,
    ) -> None:
        self.broadcast = broadcast
        self._members = members
        self._clock = clock
        self._on_settled = on_settled
        self._on_hurry = on_hurry
        self.overdue_at = clock() + broadcast.timeout
        """When a node that has not answered is given up."""
        self.deadline = self.overdue_at
        """Until when this question waits; sooner if a quorum is there and the others only linger."""
        nodes = len(broadcast.commands)
        self.votes: list[Vote | None] = [None] * nodes
        self.count = Count(nodes, missing=nodes)
        self.is_open = True
        self.is_decided = False
        self._slots: list[Slot | None] = []
        slot: Slot | None = None
        for command in broadcast.commands:
            if command is not None and (slot is None or command is not slot.command):  # mostly all nodes get the same
                slot = Slot(command, packed(command), self, self.overdue_at)
            self._slots.append(slot if command is not None else None)

    def send(self) -> None:
        """Queue the commands on the links that are open; nodes without one are unknown at once."""
        now = self._clock()
        slots, self._slots = self._slots, []  # they know us: without a cycle both go as soon as all is answered
        for index, (slot, member) in enumerate(zip(slots, self._members, strict=True)):
            if slot is None:
                self._take(index, member.unknown("not asked"))
            elif member.link.is_open:
                slot.sent_at = now
                member.link.send(slot)
            else:
                self._take(index, member.unknown())
                member.owe(slot.command, now)
        self._consider(now)

    def answered(self, index: int, reply: Any, now: float) -> None:
        """Take one node's reply, or the NodeFaultError that ended its link."""
        member = self._members[index]
        if not self.is_open:
            member.was_late_to_object |= _objects(reply)
            return
        member.was_late_to_object = False
        if now >= self.overdue_at:  # read late, as after a pause of this process: it says nothing about now
            given = member.unknown("no reply in time")
        elif isinstance(reply, NodeFaultError):
            given = Vote(member.name, VoteKind.UNKNOWN, (), reply.cause, reply.permanent)
        else:
            command = self.broadcast.commands[index]
            given = vote(member.name, reply, command.script.grants if command else None)
        self._take(index, given)
        if self.count.missing < self.count.quorum:  # before that nothing can be decided
            self._consider(now)

    def _take(self, index: int, given: Vote) -> None:
        self.votes[index] = given
        self.count.add(given)

    def _consider(self, now: float) -> None:
        """Settle if the votes allow it; or note that they nearly do, and the rest should hurry."""
        broadcast, count = self.broadcast, self.count
        is_enough = broadcast.enough(count)
        if is_enough and (not count.missing or broadcast.enough is nobody):
            self.is_decided = True
            self.settle()
            return
        if not is_enough and (self.is_decided or broadcast.linger is None or not broadcast.linger(count)):
            return
        missing = [member for member, given in zip(self._members, self.votes, strict=True) if given is None]
        # One whose objection nobody has heard, because it always comes too late, is waited for.
        is_awaited = True in [member.was_late_to_object for member in missing]
        if is_enough and not is_awaited:
            self.is_decided = True
            self.settle()
        elif not self.is_decided:
            self.is_decided = True
            if not is_awaited:
                usual = max([member.link.usual for member in missing])
                self.deadline = min(self.overdue_at, now + max(_LEAST_LINGER, _LINGER_FACTOR * usual))
                self._on_hurry(self.deadline)

    def settle(self) -> None:
        """End the question with the votes that are there."""
        if self.is_open:
            self.is_open = False
            on_settled, self._on_settled = self._on_settled, _nothing  # it may know us: no cycle stays
            on_settled()

    def result(self) -> list[Vote]:
        """Return one vote per node; those that did not come are unknown."""
        if not self.count.missing:
            return self.votes  # type: ignore[return-value]
        cause = "not waited for" if self.is_decided else "no reply in time"
        return [given or member.unknown(cause) for given, member in zip(self.votes, self._members, strict=True)]


def _objects(reply: Any) -> bool:
    """Return whether a reply asks for something to be done about its node: that it be admitted, healed, or unlisted."""
    if isinstance(reply, ReplyError):
        return str(reply).startswith("TWICE")
    return isinstance(reply, list) and ((reply[:1] == [-1] and reply[1:2] != ["waiting"]) or reply[:2] == [0, "gone"])
