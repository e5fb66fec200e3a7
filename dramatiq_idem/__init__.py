"""Dramatiq middleware: redelivered messages run once, on the records of a quorum of Redis or Valkey nodes.

from dramatiq_idem import Idempotency

Idempotency(nodes=["redis://a:6379", "redis://b:6379", "redis://c:6379"]).install(broker)
"""

import redlock

if not hasattr(redlock, "Term"):
    raise ImportError(
        f"the package 'redlock' at {getattr(redlock, '__file__', '?')} is not the one that comes with dramatiq-idem; "
        "uninstall the other distribution that provides it (pip uninstall redlock redlock-py redlock-ng), then "
        "reinstall dramatiq-idem"
    )

from dramatiq_idem.body import LeaseLostInterrupt
from dramatiq_idem.errors import (
    AcknowledgementHeldError,
    ClaimBusyError,
    FailureReplayedError,
    ForgetError,
    IdempotencyError,
    KeyDerivationError,
    KeyReusedError,
    LeftUnacknowledgedError,
    MessageRefusedError,
    OptionError,
    PlacementError,
    ResultMissingError,
    StoreUnavailableError,
    TakeoversExhaustedError,
)
from dramatiq_idem.memory import MemoryStore
from dramatiq_idem.middleware import Idempotency
from dramatiq_idem.runs import Run, current_run
from dramatiq_idem.store import RedlockStore, Store

__all__ = [
    "AcknowledgementHeldError",
    "ClaimBusyError",
    "FailureReplayedError",
    "ForgetError",
    "Idempotency",
    "IdempotencyError",
    "KeyDerivationError",
    "KeyReusedError",
    "LeaseLostInterrupt",
    "LeftUnacknowledgedError",
    "MemoryStore",
    "MessageRefusedError",
    "OptionError",
    "PlacementError",
    "RedlockStore",
    "ResultMissingError",
    "Run",
    "Store",
    "StoreUnavailableError",
    "TakeoversExhaustedError",
    "current_run",
]
