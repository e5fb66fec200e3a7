"""A FastAPI service that accepts orders: of two requests for one order at the same time, one sends the message.

export BROKER_URL=redis://broker:6379 DRAMATIQ_IDEM_NODES=redis://a:6379,redis://b:6379,redis://c:6379
uvicorn --app-dir examples fastapi_producer:app        # and its workers: dramatiq --path examples fastapi_producer
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from fastapi import FastAPI, HTTPException

from dramatiq_idem import Idempotency
from redlock import AsyncRedlock, LockHeldError, RedlockError

NODES = os.environ["DRAMATIQ_IDEM_NODES"].split(",")

broker = RedisBroker(url=os.environ["BROKER_URL"])
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)  # in producers too: it checks the options

accepted = set[str]()  # your database


@dramatiq.actor(idempotency_key="ship:{order}")
def ship(order: str) -> None:
    """Ship an order, once even if two messages were sent since the lock was lost."""
    print(f"shipped: {order}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have locks for as long as the event loop runs."""
    app.state.redlock = AsyncRedlock(NODES, namespace="idem")
    yield
    await app.state.redlock.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}", status_code=202)
async def place(order: str) -> str:
    """Accept an order; 409 while another request does so, 503 while too few nodes answer: both may be tried again."""
    try:
        async with app.state.redlock.lock(f"order:{order}", ttl=5.0):
            if order not in accepted:
                await asyncio.to_thread(ship.send, order)  # a broker's client blocks
            accepted.add(order)
    except RedlockError as error:
        raise HTTPException(409 if isinstance(error, LockHeldError) else 503) from error
    return "accepted"
