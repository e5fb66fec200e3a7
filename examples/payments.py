"""Charge each payment once. The same key goes to the gateway, for a run that is repeated after a crash.

python examples/payments.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency, current_run

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = StubBroker()  # yours is a RedisBroker or a RabbitmqBroker
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)

charges: dict[str, int] = {}
requests: list[str] = []


def gateway(key: str, amount: int) -> None:
    """Charge an amount once per idempotency key, as payment gateways do."""
    requests.append(key)
    charges.setdefault(key, amount)


@dramatiq.actor(idempotency_key="payment:{payment_id}", min_backoff=10)
def charge(payment_id: str, amount: int) -> None:
    """Charge a payment; the first run of one of them breaks off behind the charge."""
    run = current_run()
    if run is None:
        raise RuntimeError("to be run by a worker")
    gateway(run.key, amount)
    if payment_id == "p2" and len(requests) == requests.index(run.key) + 1:
        raise ConnectionError("nobody knows how far it got")


def main() -> None:
    """Send three payments, two of them twice: as another message, and as the same message again."""
    message = charge.send("p1", 1_000)
    charge.send("p1", 1_000)
    broker.enqueue(message.copy())
    charge.send("p2", 2_000)
    charge.send("p3", 3_000)
    worker = dramatiq.Worker(broker, worker_threads=4)
    worker.start()
    broker.join("default")
    worker.stop()
    print(f"requests: {len(requests)}, charges: {len(charges)}, amount: {sum(charges.values())}")


if __name__ == "__main__":
    main()
