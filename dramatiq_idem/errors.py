"""The errors of dramatiq_idem.

Dramatiq swallows whatever a ``before_*`` hook raises and runs the actor, unless it is a ``MiddlewareError``; so every
error that may leave one of our hooks is one.
"""

from __future__ import annotations

from dramatiq.errors import BrokerConnectionError
from dramatiq.middleware import MiddlewareError, SkipMessage

__all__ = [
    "AcknowledgementHeldError",
    "ClaimBusyError",
    "FailureReplayedError",
    "ForgetError",
    "IdempotencyError",
    "KeyDerivationError",
    "KeyReusedError",
    "LeftUnacknowledgedError",
    "MessageRefusedError",
    "OptionError",
    "PlacementError",
    "ResultMissingError",
    "StoreUnavailableError",
    "TakeoversExhaustedError",
]


class IdempotencyError(MiddlewareError):
    """Base class of every error that dramatiq_idem raises on purpose."""


class OptionError(IdempotencyError, ValueError):
    """An option of the middleware, an actor or a message is unknown, contradictory or out of range."""


class PlacementError(IdempotencyError):
    """The middleware stands where its promises cannot be kept; the worker does not boot."""


class KeyDerivationError(IdempotencyError):
    """No idempotency key could be derived from a message, although one is required."""


class MessageRefusedError(IdempotencyError, SkipMessage):
    """The message goes to the dead letters without running, for the reason given."""


class KeyReusedError(MessageRefusedError):
    """The key was used for other arguments; the body does not run, and nothing recorded is touched."""


class ResultMissingError(MessageRefusedError):
    """The message is a duplicate whose result is wanted, but the result was too large to be kept."""


class FailureReplayedError(MessageRefusedError):
    """The key failed for good before, and that failure is given again; the class is named like the recorded one."""


class TakeoversExhaustedError(MessageRefusedError):
    """So many runs of the key ended with their lease that the message goes to the dead letters."""


class StoreUnavailableError(IdempotencyError, SkipMessage):
    """No quorum of nodes could answer; raised once a delayed copy of the message is back in the queue."""


class ForgetError(IdempotencyError):
    """A key could not be forgotten on all nodes; the message says where not."""


class ClaimBusyError(IdempotencyError, SkipMessage):
    """Another delivery runs this key; raised once a delayed copy of the message is back in the queue."""


class LeftUnacknowledgedError(IdempotencyError):
    """The worker stops and can neither finish nor put back this delivery: the broker delivers it again."""


class AcknowledgementHeldError(IdempotencyError, BrokerConnectionError):
    """The acknowledgement must wait; being both kinds of error makes Dramatiq ask again every five seconds."""

    def __init__(self, message: str) -> None:
        super().__init__(message)  # type: ignore[no-untyped-call]
