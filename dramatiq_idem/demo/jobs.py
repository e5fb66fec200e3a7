"""The application: a broker, the middleware, one actor and its producer.

Real workers run it: ``dramatiq dramatiq_idem.demo.jobs:worker``.

Times are shorter than anybody would set them in earnest, so that what takes minutes by default (a lease that runs out,
the redelivery of a dead worker's messages) can be watched.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from dramatiq_idem.demo.gateway import Gateway
from dramatiq_idem.demo.journal import BOOTED, CHARGED, RETURNED, STARTED, Journal
from dramatiq_idem.demo.traffic import Delivery, PaymentEvent
from dramatiq_idem.middleware import Idempotency
from dramatiq_idem.runs import current_run
from redlock import Event, Observer

__all__ = ["KEY", "LEASE", "NAMESPACE", "Producer", "Site", "connect", "ignore", "worker"]

NAMESPACE: Final = "idem"
_QUEUE: Final = "payments"
KEY: Final = "job:payment:{event[payment]}"
LEASE: Final = 3.0
"""Seconds after which the job of a worker that died may be taken over; also the longest lease of the namespace."""
_HEARTBEAT_MS: Final = 3_000
_BODY: Final = (0.002, 0.003)
"""Seconds of work before and after the charge."""
_VARIABLE: Final = "DRAMATIQ_IDEM_DEMO"


@dataclass(frozen=True, slots=True)
class Site:
    """Where everything is.

    Args:
        broker: URL of the broker's Redis.
        nodes: URLs of the nodes.
        journals: Directory for the workers' journals.
        without: What is left out on purpose: "middleware", "gateway-key" or nothing.
    """

    broker: str
    nodes: tuple[str, ...]
    journals: str
    without: str = ""

    @property
    def ledger(self) -> str:
        """URL of the gateway's database; the broker's own has another number."""
        return f"{self.broker}/1"

    def to_environment(self) -> dict[str, str]:
        """Return the variable by which workers are told."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Site:
        """Read what `to_environment` wrote."""
        fields = json.loads(environment[_VARIABLE])
        return cls(**fields | {"nodes": tuple(fields["nodes"])})


def connect(site: Site, observer: Observer) -> RedisBroker:
    """Return a broker with the middleware in it."""
    client = redis.Redis.from_url(site.broker, socket_timeout=5.0)
    broker = RedisBroker(  # type: ignore[no-untyped-call]
        client=client, heartbeat_timeout=_HEARTBEAT_MS, maintenance_chance=1_000_000
    )
    if site.without != "middleware":
        Idempotency(
            site.nodes, namespace=NAMESPACE, max_ttl=LEASE, key=KEY, lease=round(LEASE * 1000), observer=observer
        ).install(broker)
    return broker


def ignore(_event: Event) -> None:
    """Observe nothing: what the demo shows, the workers' journals say."""


def _declare(
    broker: RedisBroker, body: Callable[[PaymentEvent], None] | None = None
) -> dramatiq.Actor[[PaymentEvent], None]:
    """Declare the actor on a broker; the producer, which only sends, has no body for it."""

    @dramatiq.actor(queue_name=_QUEUE, broker=broker)
    def charge(event: PaymentEvent) -> None:
        if body is None:
            raise NotImplementedError
        body(event)

    return charge


def worker() -> None:
    """Set up this worker process; called by dramatiq's command."""
    site = Site.from_environment(os.environ)
    journal = Journal(Path(site.journals))
    gateway = Gateway(site.ledger)

    def charge(event: PaymentEvent) -> None:
        payment = str(event["payment"])
        message = CurrentMessage.get_current_message()
        journal.write(STARTED, payment, message.message_id if message else "-")
        time.sleep(_BODY[0])
        run = current_run()
        gateway.charge(payment, run.key if run and site.without != "gateway-key" else None)
        journal.write(CHARGED, payment)
        time.sleep(_BODY[1])
        journal.write(RETURNED, payment)

    broker = connect(site, journal.observe)
    broker.add_middleware(CurrentMessage())
    _declare(broker, charge)
    dramatiq.set_broker(broker)
    journal.write(BOOTED)


class Producer:
    """Sends payments.

    Args:
        broker: Where to, with the middleware in it as in the workers.
    """

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker
        self._charge = _declare(broker)
        self._messages: dict[str, dramatiq.Message[None]] = {}

    def send(self, delivery: Delivery) -> None:
        """Send a message: a new one, or the first one of its payment again."""
        payment = str(delivery.event["payment"])
        message = self._charge.message(delivery.event)
        if delivery.kind == "copy":
            message = self._messages[payment].copy()
        self._broker.enqueue(message)
        if delivery.kind == "first":
            self._messages[payment] = message

    def is_queue_empty(self) -> bool:
        """Tell whether no message is queued, delayed or in a worker's hands; the broker answers in one step."""
        return not self._broker.do_qsize(_QUEUE)
