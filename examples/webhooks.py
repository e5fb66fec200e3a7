"""Handle each event of a webhook once, by the id that its sender gave it, however often it is delivered.

python examples/webhooks.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys
from typing import Any

import dramatiq
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = StubBroker()
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)

handled: list[str] = []


# A second delivery has another attempt, so the attempt must not count when arguments are compared. An event without an
# id goes to the dead letters; the default would be to run it unprotected.
@dramatiq.actor(
    idempotency_key="webhook:{event[id]}",
    idempotency_fingerprint=["event"],
    idempotency_require_key=True,
    idempotency_retention=7 * 86_400_000,  # as long as the sender goes on trying
    max_retries=0,
)
def handle(event: dict[str, Any], attempt: int) -> None:
    """Handle an event."""
    handled.append(f"{event['id']} (attempt {attempt})")


def main() -> None:
    """Deliver one event three times, one with the same id and another content, and one without an id."""
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    for attempt in (1, 2, 3):
        handle.send({"id": "evt_1", "type": "invoice.paid", "amount": 4_200}, attempt)
    broker.join("default", fail_fast=False)
    handle.send({"id": "evt_1", "type": "invoice.paid", "amount": 1}, 1)
    handle.send({"id": "", "type": "ping"}, 1)
    broker.join("default", fail_fast=False)
    worker.stop()
    print(f"handled: {', '.join(handled)}; dead letters: {len(broker.dead_letters)}")


if __name__ == "__main__":
    main()
