"""What a plan may ask of its driver.

A plan is a generator that decides and does no IO: it yields a `Broadcast` and is sent one `Vote` per node, or yields a
`Sleep` and is sent nothing. A driver that is interrupted throws the interruption into the plan and still carries out
what the plan yields then, so that clean-up is written once, in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from redlock.quorum import Count, Vote, VoteKind
from redlock.scripts import Script

__all__ = [
    "Broadcast",
    "Clock",
    "Command",
    "Enough",
    "Plan",
    "Sleep",
    "Step",
    "everybody",
    "nobody",
    "take_back",
    "together",
]

T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
"""Seconds that never jump: CLOCK_BOOTTIME where there is one, else monotonic."""
Enough: TypeAlias = Callable[["Count"], bool]
"""Whether a round may end; asked before the first answer, and as soon as the nodes that are missing are no majority."""


class Command(NamedTuple):
    """One script call.

    Args:
        script: The script.
        keys: Redis keys, each below the namespace.
        args: Further arguments; text or whole numbers.
        undo: What takes the effect back; the driver sends it behind this command, on the same connection, when no
            reply came in time. None for what may safely happen late.
        worth: For how many seconds it is worth telling a node that cannot be reached now, in the background, once it
            is back. 0 for what is only a question.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    undo: Command | None = None
    worth: float = 0.0


def everybody(count: Count) -> bool:
    """Wait for all the nodes, or for the time-out."""
    return not count.missing


def nobody(_count: Count) -> bool:
    """Do not wait: written in order behind what was sent before is enough."""
    return True


class Broadcast(NamedTuple):
    """Ask the nodes at once.

    Args:
        commands: One per configured node; None for a node that is not asked (its vote is unknown).
        timeout: Seconds until what has not answered is unknown.
        enough: Whether the votes so far (None: not yet) allow to go on.
        linger: Whether they allow to go on soon: the other nodes then get about three times their usual time.
    """

    commands: tuple[Command | None, ...]
    timeout: float
    enough: Enough = everybody
    linger: Enough | None = None

    @classmethod
    def to_all(
        cls, command: Command, nodes: int, timeout: float, enough: Enough = everybody, linger: Enough | None = None
    ) -> Broadcast:
        """Send the same command to all nodes."""
        return cls((command,) * nodes, timeout, enough, linger)


def take_back(undo: Command, votes: Sequence[Vote] | None, nodes: int, timeout: float) -> Broadcast:
    """Return the round that takes back what an attempt may have written: everywhere but where it was refused.

    A node that did not answer gets its undo from the driver, right behind the command; so where it cannot be reached
    now, it need not be told by this round too. Without votes (the attempt was interrupted) everybody may have written.
    """
    if votes is None:
        return Broadcast((undo,) * nodes, timeout, nobody)
    commands = {VoteKind.GRANTED: undo, VoteKind.UNKNOWN: undo._replace(worth=0.0), VoteKind.REFUSED: None}
    return Broadcast(tuple(commands[vote.kind] for vote in votes), timeout, nobody)


class Sleep(NamedTuple):
    """Do nothing for some seconds."""

    seconds: float


Step: TypeAlias = "Broadcast | Sleep | tuple[Broadcast, ...]"
"""What a plan yields; several broadcasts travel as one pipeline per node, and are answered by a list of votes each."""
Plan: TypeAlias = Generator[Step, Any, T]


def together(plans: Sequence[Plan[Any]]) -> Plan[list[Any]]:
    """Carry out plans that do not sleep in step, so that their broadcasts travel together.

    Returns:
        For each plan its result, or the exception that it raised.
    """
    results: list[Any] = [None] * len(plans)
    answers: dict[int, Any] = dict.fromkeys(range(len(plans)))
    while answers:
        steps: dict[int, Any] = {}
        for index, answer in answers.items():
            try:
                steps[index] = plans[index].send(answer)
            except StopIteration as end:  # noqa: PERF203 - each plan ends for itself
                results[index] = end.value
            except Exception as error:  # noqa: BLE001 - one plan must not stop the others
                results[index] = error
        answers = dict(zip(steps, (yield tuple(steps.values())), strict=True)) if steps else {}
    return results
