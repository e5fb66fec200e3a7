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
    "Deferred",
    "GivenUp",
    "LeaseLost",
    "MessageEvent",
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
        seconds: How long the claim took.
    """

    level: ClassVar[int] = logging.DEBUG
    takeovers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Completed(MessageEvent):
    """The completion is recorded on enough nodes.

    Args:
        seconds: How long recording it took.
        is_ours: False if an earlier run of the key had been recorded: this body ran a second time.
    """

    level: ClassVar[int] = logging.DEBUG
    seconds: float
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Skipped(MessageEvent):
    """A duplicate of a completed message was not run.

    Args:
        completed_by: Id of the message that was completed.
    """

    completed_by: str


@dataclass(frozen=True, slots=True)
class Deferred(MessageEvent):
    """The message went back to the queue without running.

    Args:
        reason: "busy" or "unavailable".
        delay_ms: For how long it is delayed.
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
class LeaseLost(MessageEvent):
    """The lease was lost while the body ran; another delivery may run it too."""

    level: ClassVar[int] = logging.ERROR
    cause: str


@dataclass(frozen=True, slots=True)
class Unprotected(MessageEvent):
    """The body runs without a claim: no key could be derived."""

    level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, slots=True)
class CompletionUnrecorded(MessageEvent):
    """The message is acknowledged although its completion is not recorded: another copy may run the body again."""

    level: ClassVar[int] = logging.CRITICAL
    waited: float
