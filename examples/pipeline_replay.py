"""A pipeline is sent twice: its steps run once, and the second one goes on with the first one's results.

python examples/pipeline_replay.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from dramatiq_idem import Idempotency

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = StubBroker()
broker.add_middleware(Results(backend=StubBackend()))
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)

ran: list[str] = []


@dramatiq.actor(store_results=True, idempotency_key="reserve:{order}")
def reserve(order: str) -> dict[str, str | int]:
    """Reserve stock; what it returns is kept with the completion."""
    ran.append("reserve")
    return {"order": order, "reservation": 7_000 + len(ran)}


@dramatiq.actor(store_results=True, idempotency_key="invoice:{reserved[reservation]}")
def invoice(reserved: dict[str, str | int]) -> str:
    """Write an invoice for a reservation."""
    ran.append("invoice")
    return f"invoice {reserved['reservation']}-{len(ran)} for {reserved['order']}"


def main() -> None:
    """Run the pipeline, and run it again as a producer does that did not hear the broker's answer."""
    worker = dramatiq.Worker(broker, worker_threads=2)
    worker.start()
    invoices = []
    for _ in range(2):
        pipeline = dramatiq.pipeline([reserve.message("o-1"), invoice.message()]).run()
        invoices.append(pipeline.get_result(block=True, timeout=60_000))
    worker.stop()
    print(f"ran: {', '.join(ran)}; first: {invoices[0]}; second: {invoices[1]}")


if __name__ == "__main__":
    main()
