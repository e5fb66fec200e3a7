"""What happens to messages, as frozen records; the protocol and the node events are redlock's.

Each names the key, the actor and the message, so that a line in the log can be followed to `show KEY` on the nodes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from redlock import Event

__all__ = [
    "Claimed",
    "Completed",
    "CompletionUnrecorded",
    "DeadLettered",
    "Deferred",
    "DoubleRun",
    "Forgotten",
    "GivenUp",
    "LeaseLost",
    "MessageEvent",
    "NodeRepaired",
    "RecordsForgotten",
    "Renewed",
    "Replayed",
    "Skipped",
    "Unprotected",
]


@dataclass(frozen=True, slots=True)
class MessageEvent(Event):
    """Base of the events about one delivery.

    Args:
        key: The idempotency key; None if there is none.
        actor: The actor's name.
        message_id: Of the delivered message.
    """

    key: str | None
    actor: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Claimed(MessageEvent):
    """The body is about to run.

    Args:
        takeovers: How many earlier runs of the key ended with their lease instead of a completion or an error.
        seconds: Seconds that the claim took, waiting for a quorum included.
    """

    level: ClassVar[int] = logging.DEBUG
    takeovers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Completed(MessageEvent):
    """The completion is recorded on enough nodes.

    Args:
        seconds: Seconds since the body's end.
    """

    level: ClassVar[int] = logging.DEBUG
    seconds: float


@dataclass(frozen=True, slots=True)
class Skipped(MessageEvent):
    """A duplicate was not run, and acknowledged.

    Args:
        other: Id of the message that stands for it.
        reason: "completed"; "replayed already", where an earlier delivery of this message was given the result; or
            "busy", where the actor chose to skip then.
        since: When the key was first claimed, in seconds since the epoch by the clock of a node; None if that is not
            known.
    """

    other: str
    reason: str
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Deferred(MessageEvent):
    """The message went back to the queue without running.

    Args:
        reason: "busy" or "unavailable".
        delay_ms: Milliseconds for which it is delayed.
        detail: Who holds the key, or what is wrong with the nodes.
    """

    reason: str
    delay_ms: int
    detail: str


@dataclass(frozen=True, slots=True)
class GivenUp(MessageEvent):
    """The body raised, or another middleware skipped or failed the message; the claim was given up.

    Args:
        state: "free", or "failed" if the message goes to the dead letters.
    """

    level: ClassVar[int] = logging.DEBUG
    state: str


@dataclass(frozen=True, slots=True)
class Renewed(MessageEvent):
    """The lease was renewed while the body ran; happens every third of the lease."""

    level: ClassVar[int] = logging.DEBUG


@dataclass(frozen=True, slots=True)
class LeaseLost(MessageEvent):
    """The lease was lost while the body ran; another delivery may run it too.

    Args:
        cause: Why, in words.
    """

    level: ClassVar[int] = logging.ERROR
    cause: str


@dataclass(frozen=True, slots=True)
class Replayed(MessageEvent):
    """A duplicate of a completed message got that one's result in place of a run.

    Args:
        completed_by: Id of the message that was completed.
    """

    completed_by: str


@dataclass(frozen=True, slots=True)
class Unprotected(MessageEvent):
    """The body runs without a claim.

    Args:
        reason: "no key"; "unavailable" (no quorum, and the actor is to run then); or "done" (completed, and the actor
            is to run again).
    """

    level: ClassVar[int] = logging.WARNING
    reason: str


@dataclass(frozen=True, slots=True)
class DoubleRun(MessageEvent):
    """A body ran although an earlier run of its key was completed; seen when its own completion met the other.

    Args:
        completed_by: Id of the message whose completion stands.
    """

    level: ClassVar[int] = logging.CRITICAL
    completed_by: str


@dataclass(frozen=True, slots=True)
class Forgotten(MessageEvent):
    """Somebody forgot the key while its body ran: this completion does not count any more."""

    level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, slots=True)
class DeadLettered(MessageEvent):
    """The message went to the dead letters without running.

    Args:
        reason: Why, in words.
    """

    level: ClassVar[int] = logging.ERROR
    reason: str


@dataclass(frozen=True, slots=True)
class NodeRepaired(Event):
    """A node that had forgotten its records has them again, as far as the others remember, and may speak for them.

    Args:
        node: Its name.
        records: How many were moved up.
    """

    level: ClassVar[int] = logging.WARNING
    node: str
    records: int


@dataclass(frozen=True, slots=True)
class RecordsForgotten(Event):
    """So many nodes have forgotten their records that completions may be unknown: what they covered may run again.

    Args:
        nodes: Those that forgot.
    """

    level: ClassVar[int] = logging.CRITICAL
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompletionUnrecorded(MessageEvent):
    """The message is acknowledged although its completion is not recorded: another copy may run the body again.

    Args:
        waited: Seconds since the body's end for which it was tried.
    """

    level: ClassVar[int] = logging.CRITICAL
    waited: float
