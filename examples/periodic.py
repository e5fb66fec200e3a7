"""A periodic job: one run for each slot of time, however many schedulers send it, and never two slots at once.

python examples/periodic.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys
import time

import dramatiq
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency
from redlock import Redlock

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = StubBroker()
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)
redlock = Redlock(NODES, namespace="idem")

slots: list[int] = []
spans: list[str] = []


# The slot is in the key: a scheduler that is late, or a second one, adds nothing. What the key cannot do is keep the
# next slot from starting while this one still runs; a lock whose name has no slot does.
@dramatiq.actor(idempotency_key="report:{slot}")
def report(slot: int) -> None:
    """Write the report of a slot; takes longer than a slot."""
    with redlock.lock("report", wait=20.0):
        spans.append("(")
        time.sleep(0.3)
        slots.append(slot)
        spans.append(")")


def main() -> None:
    """Send four slots, each from two hosts that have the same cron table."""
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    for slot in range(4):
        for _host in ("a", "b"):
            report.send(slot)
        time.sleep(0.1)
    broker.join("default")
    worker.stop()
    redlock.close()
    print(f"slots: {sorted(slots)}, runs: {''.join(spans)}")


if __name__ == "__main__":
    main()
