"""An asyncio service that accepts orders: two requests for one order at the same time send one message.

python examples/asyncio_producer.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import asyncio
import os
import sys

import dramatiq
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency
from redlock import AsyncRedlock, LockHeldError, RedlockError

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = StubBroker()
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)  # in producers too: it checks the options

accepted, shipped = set[str](), list[str]()  # your database


@dramatiq.actor(idempotency_key="ship:{order}")
def ship(order: str) -> None:
    """Ship an order, once even if the lock was lost and two messages were sent."""
    shipped.append(order)


async def place(redlock: AsyncRedlock, order: str) -> int:
    """Handle a request, as a route of your web framework; return the HTTP status."""
    try:
        async with redlock.lock(f"order:{order}", ttl=5.0):
            if order in accepted:
                return 200
            await asyncio.to_thread(ship.send, order)  # a broker's client blocks
            accepted.add(order)
            return 201
    except RedlockError as error:  # held: another request is at it; else no quorum, the client may try again
        return 409 if isinstance(error, LockHeldError) else 503


async def main() -> None:
    """Send each of three orders twice at once, then once more."""
    redlock = AsyncRedlock(NODES, namespace="idem")
    statuses = await asyncio.gather(*(place(redlock, order) for order in "abcabc"))
    statuses += [await place(redlock, order) for order in "abc"]
    await redlock.close()
    worker = dramatiq.Worker(broker)
    worker.start()
    await asyncio.to_thread(broker.join, "default")
    worker.stop()
    print(f"statuses: {sorted(statuses)}, shipped: {sorted(shipped)}")


if __name__ == "__main__":
    asyncio.run(main())
