"""What happens, as frozen records, for whoever watches.

An observer is any callable that takes an event. It is called on the thread where the event happened, must be quick, and
what it raises is logged and otherwise ignored: watching never decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

__all__ = ["Admitted", "Event", "LeaseLost", "NodeDown", "NodeTimed", "NodeUp", "Observer", "log_event", "notify"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; `level` is the logging level that it deserves."""

    level: ClassVar[int] = logging.INFO

    def __str__(self) -> str:
        values = " ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{type(self).__name__} {values}".rstrip()


Observer: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """A node that had forgotten, or is new, votes on leases after `wait_ms`.

    Args:
        node: The node's name.
        reason: "new" (no marker), "restarted" (another identity) or "vouched" (somebody vouches that nothing was lost).
        rights: "records" if it also votes on the absence of records; "fresh" if it soon will; else "leases".
        wait_ms: Milliseconds until its first vote.
    """

    level: ClassVar[int] = logging.WARNING
    node: str
    reason: str
    rights: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class NodeDown(Event):
    """A node's connection failed; it is left out for a while unless no quorum could be reached without it.

    Args:
        node: The node's name.
        cause: What failed, in words.
        pause: Seconds for which it is left out.
    """

    level: ClassVar[int] = logging.WARNING
    node: str
    cause: str
    pause: float


@dataclass(frozen=True, slots=True)
class NodeUp(Event):
    """A node that had failed answers again.

    Args:
        node: The node's name.
    """

    node: str


@dataclass(frozen=True, slots=True)
class NodeTimed(Event):
    """How long a node takes to answer: told every 5 s while this process talks to it.

    Args:
        node: The node's name.
        seconds: Seconds from the command to its reply, smoothed over about eight replies.
    """

    level: ClassVar[int] = logging.DEBUG
    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """A lease could not be kept; what it protected may be done by somebody else now.

    Args:
        resource: What was locked.
        cause: Why it was lost, in words.
    """

    level: ClassVar[int] = logging.ERROR
    resource: str
    cause: str


_logger = logging.getLogger("redlock")


def log_event(event: Event) -> None:
    """Write one line at the event's level to the logger "redlock"; the default observer."""
    _logger.log(event.level, "%s", event)


def notify(observer: Observer, event: Event) -> None:
    """Tell an observer; what it raises is logged and goes no further."""
    try:
        observer(event)
    except Exception:
        _logger.exception("observer failed on %s", event)
