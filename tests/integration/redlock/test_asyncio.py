"""The asyncio driver: cancelled anywhere, on one event loop after another, and nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from redlock import AsyncLease, AsyncRedlock, LeaseLostError, LockHeldError, QuorumUnreachableError, RedlockError
from redlock.local import LocalNodes
from tests.tools.peek import Stopwatch, ask, happens, lock_keys, values


@contextlib.asynccontextmanager
async def opened(nodes: LocalNodes, **options: Any) -> AsyncIterator[AsyncRedlock]:
    """Make a lock, connect it, and close it at the end."""
    redlock = AsyncRedlock(nodes.urls, **{"ttl": 5.0, "observer": lambda _event: None} | options)
    try:
        await (await redlock.acquire("warm-up")).release()
        yield redlock
    finally:
        await redlock.close()


async def holds(condition: Callable[[], Any], within: float = 2.0) -> bool:
    """Wait until something holds, without stopping the event loop; return whether it did in time."""
    deadline = time.monotonic() + within
    while not (held := bool(condition())) and time.monotonic() < deadline:  # noqa: ASYNC110 - nodes send no event
        await asyncio.sleep(0.005)
    return held


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and wait for its end; return whether it ended by that."""
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


# -- cancelling


@pytest.mark.parametrize("stopped", [1, 2, 3], ids=lambda count: f"{count} stopped")
def test_cancelled_acquire_leaves_no_key(nodes3: LocalNodes, serving: Any, stopped: int) -> None:
    """L21: cancelled while stopped nodes have the command in their sockets; 500 ms after they go on, nothing is held.

    With one node stopped the others decide at once; it is cancelled at once then.
    """
    serving(nodes3)

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=3.0) as redlock:
            for node in nodes3[3 - stopped :]:
                node.pause()
            task = asyncio.create_task(redlock.acquire("r", ttl=20.0))
            await asyncio.sleep(0.5 if stopped > 1 else 0)
            assert await cancelled(task)
            for node in nodes3:
                node.resume()
            assert await holds(lambda: lock_keys(nodes3) == [], within=0.5)
            await asyncio.sleep(0.1)
            assert lock_keys(nodes3) == []
            assert await (await redlock.acquire("r", wait=3.0)).release()

    asyncio.run(scenario())


def test_cancelled_acquire_leaves_no_key_although_it_was_closed_at_once(nodes3: LocalNodes, serving: Any) -> None:
    """L21: the undo is on its way before close has returned."""
    serving(nodes3)

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=3.0) as redlock:
            for node in nodes3[1:]:
                node.pause()
            task = asyncio.create_task(redlock.acquire("r", ttl=20.0))
            await asyncio.sleep(0.2)
            assert await cancelled(task)

    asyncio.run(scenario())
    for node in nodes3:
        node.resume()
    assert happens(lambda: lock_keys(nodes3) == [], within=0.5)


def test_second_cancellation_does_not_stop_the_undo(nodes3: LocalNodes, serving: Any) -> None:
    """L21: whoever cancels impatiently, again and again, gets the same clean nodes."""
    serving(nodes3)

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=3.0) as redlock:
            for node in nodes3[1:]:
                node.pause()
            task = asyncio.create_task(redlock.acquire("r", ttl=20.0))
            await asyncio.sleep(0.2)
            for _ in range(20):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
            for node in nodes3:
                node.resume()
            assert await holds(lambda: lock_keys(nodes3) == [], within=0.5)

    asyncio.run(scenario())


@pytest.mark.parametrize("stopped", [1, 2, 3], ids=lambda count: f"{count} stopped")
def test_cancelled_release_can_be_called_again(nodes3: LocalNodes, serving: Any, stopped: int) -> None:
    """L22: afterwards the key is gone, or a second release takes it away; never locked by nobody."""
    serving(nodes3)

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=3.0) as redlock:
            lease = await redlock.acquire("r", ttl=20.0)
            assert await holds(lambda: values(nodes3, "r") == [lease.token] * 3)
            for node in nodes3[3 - stopped :]:
                node.pause()
            task = asyncio.create_task(lease.release())
            await asyncio.sleep(0.2 if stopped > 1 else 0)
            await cancelled(task)
            for node in nodes3:
                node.resume()
            if not await holds(lambda: lock_keys(nodes3) == [], within=0.5):
                assert await lease.release()
            assert await holds(lambda: lock_keys(nodes3) == [], within=0.5)
            assert await (await redlock.acquire("r", wait=3.0)).release()

    asyncio.run(scenario())


TURNS = range(41)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "cold"])
def test_acquire_may_be_cancelled_after_any_turn_of_the_loop(trio: LocalNodes, serving: Any, connected: bool) -> None:  # noqa: FBT001
    """No key without an owner, and the next one acquires at once, wherever the cancellation hits."""
    serving(trio)
    outcomes = []

    async def scenario(turns: int) -> None:
        redlock = AsyncRedlock(trio.urls, 20.0, observer=lambda _event: None)
        if connected:
            await (await redlock.acquire("warm-up")).release()
        task = asyncio.create_task(redlock.acquire("r"))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = await cancelled(task)
        outcomes.append(was_cancelled)
        if was_cancelled:
            assert await holds(lambda: lock_keys(trio) == [], within=0.5), turns
        else:
            assert await task.result().release()
        assert await (await redlock.acquire("r", wait=1.0)).release(), turns
        await redlock.close()

    for turns in TURNS:
        asyncio.run(scenario(turns))
    assert any(outcomes)
    assert not connected or not all(outcomes), "no cancellation came after the end"


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_holding_may_be_cancelled_after_any_turn_of_the_loop(trio: LocalNodes, serving: Any, verb: str) -> None:
    """L22: a release that was interrupted can be repeated; an interrupted extension harms nothing."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio, ttl=20.0) as redlock:
            for turns in TURNS:
                lease = await redlock.acquire("r", wait=1.0)
                task = asyncio.create_task(getattr(lease, verb)())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancelled(task)
                if verb == "extend":
                    lease.check()
                await lease.release()
                assert await holds(lambda: lock_keys(trio) == [], within=0.5), turns

    asyncio.run(scenario())


def test_body_may_be_cancelled_after_any_turn_of_the_loop(trio: LocalNodes, serving: Any) -> None:
    """The context manager gives the lock back, before, in and after its body; nothing is renewed afterwards."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio, ttl=20.0) as redlock:

            async def hold() -> None:
                async with redlock.lock("r"):
                    await asyncio.sleep(0.002)

            for turns in TURNS:
                task = asyncio.create_task(hold())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancelled(task)
                assert await holds(lambda: lock_keys(trio) == [], within=0.5), turns
                assert len(redlock._renewer) == 0

    asyncio.run(scenario())


def test_time_out_around_acquire_leaves_no_key(trio: LocalNodes, serving: Any) -> None:
    """As `asyncio.wait_for` cancels: while it pauses between two attempts."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            held = await redlock.acquire("r")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(redlock.acquire("r", wait=30.0), 0.3)
            assert values(trio, "r") == [held.token] * 3
            assert await held.release()
            assert await holds(lambda: lock_keys(trio) == [])

    asyncio.run(scenario())


# -- many at once


def test_hundred_at_once_have_their_own_locks(trio: LocalNodes, serving: Any) -> None:
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            leases = await asyncio.gather(*(redlock.acquire(f"r{number}") for number in range(100)))
            assert len({lease.token for lease in leases}) == 100
            assert all(await asyncio.gather(*(lease.release() for lease in leases)))
            assert await holds(lambda: lock_keys(trio) == [])

    asyncio.run(scenario())


def test_hundred_at_once_share_one_lock(trio: LocalNodes, serving: Any) -> None:
    """At most one of them is inside, and of a hundred that ask once, at most one gets it."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            outcomes = await asyncio.gather(*(redlock.acquire("r") for _ in range(100)), return_exceptions=True)
            won = [outcome for outcome in outcomes if isinstance(outcome, AsyncLease)]
            assert len(won) <= 1
            assert all(isinstance(outcome, (AsyncLease, LockHeldError)) for outcome in outcomes)
            for lease in won:
                await lease.release()
            counter = inside = 0

            async def add() -> None:
                nonlocal counter, inside
                async with redlock.lock("r", wait=15.0) as lease:
                    inside += 1
                    seen = counter
                    await asyncio.sleep(0.001)
                    assert inside == 1
                    counter = seen + 1
                    inside -= 1
                    lease.check()

            await asyncio.gather(*(add() for _ in range(20)))
            assert counter == 20

    asyncio.run(scenario())


# -- renewal


def test_loss_is_told_once_on_the_loop(nodes3: LocalNodes, serving: Any) -> None:
    """L45: one call with the cause, when the validity ends, on the event loop's own thread."""
    serving(nodes3)
    told: list[tuple[float, int, str | None]] = []

    def note(lease: AsyncLease) -> None:
        asyncio.get_running_loop()
        told.append((time.monotonic(), threading.get_ident(), lease.term.cause))

    async def scenario() -> None:
        async with opened(nodes3) as redlock:
            with pytest.raises(LeaseLostError):  # noqa: PT012
                async with redlock.lock("r", ttl=1.0, on_lost=note) as lease:
                    for node in nodes3:
                        node.pause()
                    end = time.monotonic() + lease.validity
                    await asyncio.sleep(lease.validity + 0.5)
                    assert lease.lost
                    assert len(told) == 1
                    moment, thread, cause = told[0]
                    assert 0.0 <= moment - end < 0.15
                    assert thread == threading.get_ident()
                    assert cause
                    for node in nodes3:
                        node.resume()
            await asyncio.sleep(0.2)
            assert len(told) == 1

    asyncio.run(scenario())


def test_broken_callback_harms_no_other_lease(nodes3: LocalNodes, serving: Any) -> None:
    """What a callback raises goes to the loop's handler, once, and the renewing task goes on."""
    serving(nodes3)

    def broken(_lease: AsyncLease) -> None:
        raise RuntimeError("callback")

    async def scenario() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        async with opened(nodes3) as redlock, redlock.lock("kept", ttl=0.6) as kept:
            with contextlib.suppress(LeaseLostError):
                async with redlock.lock("lost", ttl=0.3, on_lost=broken) as lost:
                    for node in nodes3:
                        ask(node.url, "SET", "redlock:lock:lost", "x")
                    assert await holds(lambda: lost.lost)
                    await asyncio.sleep(0.8)
            kept.check()
        assert [str(context["exception"]) for context in complaints] == ["callback"]

    asyncio.run(scenario())


def test_release_wins_against_renewal(trio: LocalNodes, serving: Any) -> None:
    """L43: due at once, so that the renewing task is at it while we release; no key comes back."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            for number in range(100):
                lease = await redlock.acquire(f"r{number}", ttl=20.0)
                lease.term.renew_at = 0.0
                redlock._renewer.add(lease)
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                await lease.release()
            assert await holds(lambda: lock_keys(trio) == [], within=0.5)
            await asyncio.sleep(0.1)
            assert lock_keys(trio) == []

    asyncio.run(scenario())


def test_release_in_the_callback_does_not_wait_for_itself(trio: LocalNodes, serving: Any) -> None:
    """A callback may start a task that releases."""
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            tasks: list[asyncio.Task[bool]] = []

            def give_back(lease: AsyncLease) -> None:
                tasks.append(asyncio.create_task(lease.release()))

            with contextlib.suppress(LeaseLostError):
                async with redlock.lock("r", ttl=0.3, on_lost=give_back) as lease:
                    for node in trio:
                        ask(node.url, "SET", "redlock:lock:r", "x")
                    assert await holds(lambda: lease.lost or tasks)
                    await asyncio.sleep(0.1)
            assert [await asyncio.wait_for(task, 2.0) for task in tasks] == [False]

    asyncio.run(scenario())


# -- loops, closing


def test_one_object_serves_one_loop_after_another(trio: LocalNodes, serving: Any) -> None:
    """Each loop gets connections and a renewing task of its own; those of a loop that is closed are not kept."""
    serving(trio)
    redlock = AsyncRedlock(trio.urls, 5.0, observer=lambda _event: None)

    async def scenario() -> None:
        async with redlock.lock("r", ttl=0.3) as lease:
            await asyncio.sleep(0.5)
            lease.check()

    asyncio.run(scenario())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(4):
        asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    asyncio.run(redlock.close())
    assert happens(lambda: lock_keys(trio) == [])


def test_lease_of_an_earlier_loop_can_be_released(trio: LocalNodes, serving: Any) -> None:
    serving(trio)
    redlock = AsyncRedlock(trio.urls, 5.0, observer=lambda _event: None)
    lease = asyncio.run(redlock.acquire("r"))
    assert asyncio.run(lease.extend())
    assert asyncio.run(lease.release())
    asyncio.run(redlock.close())
    assert lock_keys(trio) == []


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_closing_ends_what_waits_for_nodes(nodes3: LocalNodes, serving: Any, wait: float) -> None:
    """Whoever waits gets an answer at once, not after the time-out; and what the nodes still do is taken back."""
    serving(nodes3)

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=4.0, ttl=20.0) as redlock:
            for node in nodes3[1:]:
                node.pause()
            task = asyncio.create_task(redlock.acquire("r", wait=wait))
            await asyncio.sleep(0.2)
            watch = Stopwatch()
            await redlock.close()
            with pytest.raises(RedlockError):
                await asyncio.wait_for(task, 3.0)
            assert watch.seconds < 1.0

    asyncio.run(scenario())
    for node in nodes3:
        node.resume()
    assert happens(lambda: lock_keys(nodes3) == [], within=0.5)


def test_closing_ends_what_waits_for_the_lock(trio: LocalNodes, serving: Any) -> None:
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            await redlock.acquire("r")
            task = asyncio.create_task(redlock.acquire("r", wait=30.0))
            await asyncio.sleep(0.1)
            watch = Stopwatch()
            await redlock.close()
            with pytest.raises(RedlockError):
                await asyncio.wait_for(task, 3.0)
            assert watch.seconds < 1.0

    asyncio.run(scenario())


def test_closing_ends_renewal_and_says_so(trio: LocalNodes, serving: Any) -> None:
    serving(trio)

    async def scenario() -> None:
        async with opened(trio) as redlock:
            with contextlib.suppress(RedlockError):
                async with redlock.lock("r", ttl=0.3) as lease:
                    await redlock.close()
                    await asyncio.sleep(0.35)
                    assert lease.lost

    asyncio.run(scenario())


def test_nothing_is_left_after_closing(nodes3: LocalNodes, serving: Any) -> None:
    """No task, no thread, no socket: also after renewals, cancellations and nodes that were stopped or down."""
    serving(nodes3).close()

    async def scenario() -> None:
        async with opened(nodes3, node_timeout=0.3) as redlock:
            async with redlock.lock("r", ttl=0.3):
                await asyncio.sleep(0.4)
            nodes3[1].pause()
            nodes3[2].kill()
            with pytest.raises(QuorumUnreachableError):
                await redlock.acquire("r")
            task = asyncio.create_task(redlock.acquire("r", wait=5.0))
            await asyncio.sleep(0.1)
            assert await cancelled(task)
            nodes3[1].resume()
        assert await holds(lambda: asyncio.all_tasks() == {asyncio.current_task()}), asyncio.all_tasks()

    sockets, threads = _sockets(), threading.active_count()  # what others leave may still end meanwhile
    asyncio.run(scenario())
    assert happens(lambda: _sockets() <= sockets and threading.active_count() <= threads), (_sockets(), sockets)


def _sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            found += str(Path("/proc/self/fd", name).readlink()).startswith("socket:")
    return found
