"""One broadcast on its way: who was asked, what came back, and when that is enough. Shared by both drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redlock.members import Member
from redlock.node import NodeFaultError
from redlock.plan import Broadcast, Clock, Command, everybody, nobody
from redlock.quorum import Vote, VoteKind
from redlock.resp import ReplyError
from redlock.slot import Slot
from redlock.wire import packed, vote

__all__ = ["Question", "is_for_all"]

_LINGER_FACTOR, _LEAST_LINGER = 3.0, 0.005
"""Once a quorum has answered, the others get this many times their usual time, and at least so many seconds."""


def is_for_all(broadcast: Broadcast) -> bool:
    """Return whether every node that can be had should be asked: for a check, or a bootstrap."""
    return broadcast.enough is everybody and broadcast.linger is None and None not in broadcast.commands


class Question:
    """A broadcast until it is settled.

    Args:
        broadcast: What is asked.
        members: The nodes.
        clock: Seconds.
        on_settled: Called once, when it is decided, overdue or given up.
        on_hurry: Called when the deadline was moved forward.
    """

    __slots__ = (
        "_clock",
        "_members",
        "_on_hurry",
        "_on_settled",
        "broadcast",
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
        on_settled: Callable[[], None],
        on_hurry: Callable[[], None] | None = None,
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
        self.votes: list[Vote | None] = [None] * len(broadcast.commands)
        self.is_open = True
        self.is_decided = False

    def send(self) -> None:
        """Queue the commands on the links that are open; nodes without one are unknown at once."""
        now = self._clock()
        before: Command | None = None
        data = b""
        for index, (command, member) in enumerate(zip(self.broadcast.commands, self._members, strict=True)):
            if command is None:
                self.votes[index] = member.unknown("not asked")
            elif member.link.is_open:
                if command is not before:  # mostly all nodes get the same
                    before, data = command, packed(command)
                member.link.send(Slot(command, self, index, now, self.overdue_at), data)
            else:
                self.votes[index] = member.unknown()
                member.owe(command, now)
        self._consider()

    def answered(self, index: int, reply: Any) -> None:
        """Take one node's reply, or the NodeFaultError that ended its link."""
        member = self._members[index]
        if not self.is_open:
            member.was_late_to_object |= _objects(reply)
            return
        member.was_late_to_object = False
        name = self._members[index].node.name
        if self._clock() >= self.overdue_at:  # read late, as after a pause of this process: it says nothing about now
            self.votes[index] = Vote(name, VoteKind.UNKNOWN, cause="no reply in time")
        elif isinstance(reply, NodeFaultError):
            self.votes[index] = Vote(name, VoteKind.UNKNOWN, cause=reply.cause, permanent=reply.permanent)
        else:
            command = self.broadcast.commands[index]
            self.votes[index] = vote(name, reply, command.script.grants if command else 0)
        self._consider()

    def _consider(self) -> None:
        """Settle if the votes allow it; or note that they nearly do, and the rest should hurry."""
        broadcast = self.broadcast
        is_enough = broadcast.enough(self.votes)
        missing = [member for member, given in zip(self._members, self.votes, strict=True) if given is None]
        if is_enough and not (missing and self._awaits(missing)):
            self.is_decided = True
            self.settle()
        elif not self.is_decided and (is_enough or (broadcast.linger is not None and broadcast.linger(self.votes))):
            self.is_decided = True
            if not self._awaits(missing):
                usual = max(member.link.usual for member in missing)
                self.deadline = min(self.overdue_at, self._clock() + max(_LEAST_LINGER, _LINGER_FACTOR * usual))
            if self._on_hurry is not None:
                self._on_hurry()

    def _awaits(self, missing: Sequence[Member]) -> bool:
        """Return whether a node is missing whose objection nobody has heard, because it always comes too late."""
        return self.broadcast.enough is not nobody and any(member.was_late_to_object for member in missing)

    def settle(self) -> None:
        """End the question with the votes that are there."""
        if self.is_open:
            self.is_open = False
            self._on_settled()

    def result(self) -> list[Vote]:
        """Return one vote per node; those that did not come are unknown."""
        cause = "not waited for" if self.is_decided else "no reply in time"
        return [given or member.unknown(cause) for given, member in zip(self.votes, self._members, strict=True)]


def _objects(reply: Any) -> bool:
    """Return whether a reply asks for something to be done about its node: that it be admitted, healed, or unlisted."""
    if isinstance(reply, ReplyError):
        return str(reply).startswith("TWICE")
    return isinstance(reply, list) and ((reply[:1] == [-1] and reply[1:2] != [b"waiting"]) or reply[:2] == [0, b"gone"])
