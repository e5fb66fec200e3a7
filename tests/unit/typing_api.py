"""The public API as users write it; never run, only checked for types."""

from __future__ import annotations

from datetime import timedelta

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from typing_extensions import assert_type

from dramatiq_idem import Idempotency, MemoryStore, RedlockStore, Run, current_run
from redlock import AsyncLease, AsyncRedlock, Lease, LockHeldError, NodeReport, QuorumUnreachableError, Redlock, Vote


def locks() -> None:
    redlock = Redlock(["redis://a:6379", redis.Redis(host="b")], ttl=timedelta(seconds=5), max_ttl=60.0)
    with redlock.lock("r", wait=5.0) as lease:
        assert_type(lease, Lease)
        assert_type(lease.remaining(), float)
        assert_type(lease.fencing_token, int)
    try:
        held = redlock.acquire("r", ttl=1.0, on_lost=lambda lost: print(lost.resource))
    except (LockHeldError, QuorumUnreachableError) as error:
        assert_type(error.votes, tuple[Vote, ...])
    else:
        assert_type(held.extend(), bool)
        assert_type(held.release(), bool)
    assert_type(redlock.attach("r", "token"), Lease)
    assert_type(redlock.audit(), list[NodeReport])


async def locks_awaited() -> None:
    redlock = AsyncRedlock(["redis://a:6379"])
    async with redlock.lock("r") as lease:
        assert_type(lease, AsyncLease)
    held = await redlock.acquire("r", wait=timedelta(seconds=1))
    assert_type(await held.release(), bool)
    assert_type(await redlock.audit(), list[NodeReport])


def messages() -> None:
    broker = RedisBroker(url="redis://broker:6379")  # type: ignore[no-untyped-call]
    idempotency = Idempotency(["redis://a:6379"], lease=30_000, key="payload", retention=60_000)
    assert_type(idempotency.install(broker), Idempotency)
    Idempotency(store=RedlockStore(["redis://a:6379"], write_quorum=1))
    Idempotency(store=MemoryStore())

    @dramatiq.actor(broker=broker, idempotency_key="payment:{payment_id}")
    def charge(payment_id: str) -> None:
        run = current_run()
        assert_type(run, Run | None)
        if run is not None:
            assert_type(run.key, str)
            assert_type(run.fencing_token, int)

    charge.send("p")
