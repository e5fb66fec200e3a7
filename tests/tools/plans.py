"""Plans by hand: a clock that only moves when told, votes in one line, and what a command is."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from redlock import Broadcast, Settings, Vote, VoteKind
from redlock.plan import Command, Plan
from redlock.protocol import LockProtocol
from redlock.scripts import PING

NAMES = tuple(f"n{number}" for number in range(1, 10))


class ManualClock:
    """A clock that moves only when told; also where time starts."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def granted(*reply: Any, node: str = "n1") -> Vote:
    """Return the vote of a node that granted: counter, clock in ms and max_ttl unless another reply is given."""
    return Vote(node, VoteKind.GRANTED, reply or (7, 1_000_000, "30000/30000"))


def refused(*reply: Any, node: str = "n1") -> Vote:
    """Return the vote of a node on which somebody else holds the lock."""
    return Vote(node, VoteKind.REFUSED, reply or ("held", 1_500, "30000/30000"))


def unknown(cause: str = "no reply in time", *, permanent: bool = False, node: str = "n1") -> Vote:
    """Return the vote of a node that did not answer."""
    return Vote(node, VoteKind.UNKNOWN, cause=cause, permanent=permanent)


def not_admitted(reason: str, left_ms: int = 0, marker: str = "", *, node: str = "n1") -> Vote:
    """Return the vote of a node that says why it may not vote, who it is and what time it has."""
    return Vote(node, VoteKind.UNKNOWN, (reason, left_ms, marker, "cd34", 5_000_000), f"may not vote ({reason})")


def marked(marker: str = "", *, holds_keys: int = 0) -> Vote:
    """Return a node's answer to the question for its marker."""
    return granted(marker, "cd34", 5_000_000, holds_keys)


def named(votes: Iterable[Vote]) -> list[Vote]:
    """Return the votes as those of n1, n2, ..."""
    return [
        Vote(name, vote.kind, vote.reply, vote.cause, vote.permanent) for name, vote in zip(NAMES, votes, strict=False)
    ]


def spelled(letters: str) -> list[Vote]:
    """Return votes from letters: G granted, R refused, U unknown."""
    return named({"G": granted, "R": refused, "U": unknown}[letter]() for letter in letters)


def protocol(
    clock: ManualClock, size: int = 3, events: list[Any] | None = None, settings: Settings | None = None
) -> LockProtocol:
    """Return the lock's plans over n1, n2, ... with tokens t1, t2, ..."""
    tokens = (f"t{number}" for number in itertools.count(1))
    observer = events.append if events is not None else lambda _event: None
    return LockProtocol(settings or Settings(), size, clock, lambda: next(tokens), observer)


def asking(least: int = 2, timeout: float = 0.4, arguments: tuple[str, ...] = ()) -> Plan[int]:
    """Ask three real nodes for a sign of life; return how many gave it, once so many did."""
    command = Command(PING, (), arguments)
    votes = yield Broadcast.to_all(command, 3, timeout, lambda count: count.granted >= least)
    return sum(vote.kind is VoteKind.GRANTED for vote in votes)


def scripts_of(step: Any) -> list[str | None]:
    """Return which script a broadcast runs, node by node."""
    assert isinstance(step, Broadcast), step
    return [command and command.script.name for command in step.commands]


def only_command(step: Any) -> Command:
    """Return the command of a broadcast that sends the same one to all nodes."""
    assert isinstance(step, Broadcast), step
    assert len(set(step.commands)) == 1, step.commands
    command = step.commands[0]
    assert command is not None
    return command


def result_of(plan: Plan[Any], votes: Sequence[Vote] | None) -> Any:
    """Send a plan its last votes and return its result; it may ask for nothing more."""
    try:
        step = plan.send(votes)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"the plan goes on with {step}")


def cut_off(plan: Plan[Any]) -> None:
    """End a plan that a test leaves in the middle: no driver does so without its undo."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            plan.throw(KeyboardInterrupt())
