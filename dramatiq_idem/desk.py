"""What all decisions on deliveries share: the store, who is told, and whether the worker is stopping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dramatiq.broker import MessageProxy

from dramatiq_idem.delivery import Delivery
from dramatiq_idem.store import Store
from redlock import Observer, notify

__all__ = ["PATIENCE", "PROBE_PAUSE", "Desk"]

PATIENCE = 2.0
"""Seconds to wait for a quorum inside of a hook, before a message goes back or its acknowledgement is held."""
PROBE_PAUSE = 0.2
"""Seconds between attempts while the nodes cannot be asked."""


class Desk:
    """One for all threads of a process.

    Args:
        store: Where records are.
        observer: Is called with each event.
    """

    def __init__(self, store: Store, observer: Observer) -> None:
        self.store = store
        self._observer = observer
        self.stopping_at: float | None = None
        """Clock reading at which the worker began to stop; None while it works."""

    def tell(self, event: Callable[..., Any], message: MessageProxy, delivery: Delivery, *details: Any) -> None:
        """Make an event about a delivery and hand it to the observer."""
        notify(self._observer, event(delivery.key, message.actor_name, message.message_id, *details))
