"""One table of scenarios, run by the thread driver and by the asyncio driver under the same names."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from redlock import (
    AsyncLease,
    AsyncRedlock,
    Lease,
    LeaseLostError,
    LockHeldError,
    QuorumUnreachableError,
    Redlock,
    SettingsError,
)
from redlock.local import LocalNodes
from redlock.question import Question
from tests.tools.peek import Stopwatch, ask, lock_keys, values

_AWAITED = {"acquire", "attach", "bootstrap", "audit", "close", "extend", "release"}


class Awaited:
    """A thread lock or lease behind the asyncio one's interface: calls block, and are awaited all the same."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _AWAITED:
            return found

        async def call(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            return Awaited(result) if isinstance(result, Lease) else result

        return call

    def __repr__(self) -> str:
        return repr(self._inner)

    @contextlib.asynccontextmanager
    async def lock(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with self._inner.lock(*args, **options) as lease:
            yield Awaited(lease)


DRIVERS: dict[str, Callable[..., Any]] = {
    "threads": lambda *args, **options: Awaited(Redlock(*args, **options)),
    "asyncio": AsyncRedlock,
}


async def holds(condition: Callable[[], Any], within: float = 2.0) -> bool:
    """Wait until something holds, without stopping the event loop; return whether it did in time."""
    deadline = time.monotonic() + within
    while not (held := bool(condition())) and time.monotonic() < deadline:  # noqa: ASYNC110 - nodes send no event
        await asyncio.sleep(0.005)
    return held


# -- the scenarios; each gets a lock (ttl 5 s) on three nodes


async def a_lease_is_had_extended_and_given_back(lock: Any, nodes: LocalNodes) -> None:
    lease = await lock.acquire("r")
    assert 4.0 < lease.validity <= 4.948
    assert await holds(lambda: values(nodes, "r") == [lease.token] * 3)
    assert await lease.extend()
    assert await lease.release()
    assert not lease.lost
    assert lease.validity == 0.0
    assert await holds(lambda: lock_keys(nodes) == [])


async def a_held_lock_is_refused_with_the_votes(lock: Any, nodes: LocalNodes) -> None:
    lease = await lock.acquire("r")
    watch = Stopwatch()
    with pytest.raises(LockHeldError) as caught:
        await lock.acquire("r")
    assert watch.seconds < 0.5
    assert caught.value.resource == "r"
    assert len(caught.value.votes) == 3
    assert await holds(lambda: values(nodes, "r") == [lease.token] * 3)


async def a_second_release_is_none(lock: Any, _nodes: LocalNodes) -> None:
    lease = await lock.acquire("r")
    assert await lease.release() is True
    assert await lease.release() is False
    assert await lease.extend() is False


async def an_ended_lease_is_lost_and_not_revived(lock: Any, nodes: LocalNodes) -> None:
    lease = await lock.acquire("r", ttl=0.2)
    await asyncio.sleep(0.3)
    assert lease.lost
    assert lease.remaining() == 0.0
    with pytest.raises(LeaseLostError):
        lease.check()
    assert await lease.extend() is False
    assert await lease.release() is False
    assert lock_keys(nodes) == []


async def a_successors_keys_are_left_alone(lock: Any, nodes: LocalNodes) -> None:
    old = await lock.acquire("r", ttl=0.2)
    await asyncio.sleep(0.3)
    new = await lock.acquire("r")
    assert await old.release() is False
    assert await holds(lambda: values(nodes, "r") == [new.token] * 3)
    assert await new.release() is True


async def another_process_goes_on_with_a_lease(lock: Any, nodes: LocalNodes) -> None:
    lease = await lock.acquire("r", ttl=1.0)
    other = await lock.attach("r", lease.token, ttl=4.0)
    assert other.token == lease.token
    assert 3.0 < other.validity < 4.0
    assert other.fencing_token == lease.fencing_token
    assert await other.release()
    with pytest.raises(LockHeldError):
        await lock.attach("r", lease.token)
    assert lock_keys(nodes) == []


async def a_lock_renews_while_its_body_runs(lock: Any, nodes: LocalNodes) -> None:
    async with lock.lock("r", ttl=0.3) as lease:
        await asyncio.sleep(0.8)
        lease.check()
        assert values(nodes, "r") == [lease.token] * 3
    assert await holds(lambda: lock_keys(nodes) == [])


async def a_contended_lock_never_runs_its_body(lock: Any, _nodes: LocalNodes) -> None:
    await lock.acquire("r")
    with pytest.raises(LockHeldError):
        async with lock.lock("r"):
            pytest.fail("ran without the lock")


async def a_lock_that_was_lost_says_so_after_its_body(lock: Any, nodes: LocalNodes) -> None:
    told: list[Any] = []
    finished = False
    with pytest.raises(LeaseLostError):  # noqa: PT012
        async with lock.lock("r", ttl=0.3, on_lost=told.append) as lease:
            for node in nodes:
                ask(node.url, "SET", "redlock:lock:r", "x")
            assert await holds(lambda: lease.lost, within=1.0)
            await asyncio.sleep(0.1)
            finished = True
    assert finished
    assert len(told) == 1
    assert values(nodes, "r") == ["x"] * 3


async def what_the_body_raises_comes_before_a_loss(lock: Any, _nodes: LocalNodes) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with lock.lock("r", ttl=0.2, max_hold=0.0):
            await asyncio.sleep(0.4)
            raise KeyError


async def a_loss_stays_known_when_the_lease_is_released(lock: Any, _nodes: LocalNodes) -> None:
    """`lost` says whether it ended without being released; a late release does not change that it did."""
    with pytest.raises(LeaseLostError):  # noqa: PT012
        async with lock.lock("r", ttl=0.2, max_hold=0.0) as lease:
            await asyncio.sleep(0.3)
            assert lease.lost
            assert await lease.release() is False
            assert lease.lost


async def a_waiting_lock_is_had_when_it_is_free(lock: Any, _nodes: LocalNodes) -> None:
    await lock.acquire("r", ttl=0.4)
    watch = Stopwatch()
    lease = await lock.acquire("r", wait=5.0)
    assert 0.3 < watch.seconds < 1.5
    assert await lease.release()


async def waiting_ends_in_time(lock: Any, _nodes: LocalNodes) -> None:
    await lock.acquire("r")
    watch = Stopwatch()
    with pytest.raises(LockHeldError):
        await lock.acquire("r", wait=0.4)
    assert 0.4 <= watch.seconds < 1.0


async def a_cap_ends_renewal(lock: Any, nodes: LocalNodes) -> None:
    with pytest.raises(LeaseLostError):
        async with lock.lock("r", ttl=0.3, max_hold=0.4):
            assert await holds(lambda: lock_keys(nodes) == [], within=1.5)


async def fencing_tokens_grow(lock: Any, _nodes: LocalNodes) -> None:
    tokens = []
    for _ in range(10):
        lease = await lock.acquire("r")
        tokens.append(lease.fencing_token)
        assert await lease.extend()
        assert lease.fencing_token == tokens[-1]
        await lease.release()
    assert tokens == sorted(set(tokens))


async def arguments_that_can_never_work_are_refused(lock: Any, nodes: LocalNodes) -> None:
    for arguments in (
        {"resource": ""},
        {"resource": "\ud800"},
        {"resource": "r" * 1_025},
        {"resource": 7},
        {"resource": "r", "ttl": 0},
        {"resource": "r", "ttl": float("nan")},
        {"resource": "r", "ttl": True},
        {"resource": "r", "ttl": 31.0},
        {"resource": "r", "wait": -1},
        {"resource": "r", "max_hold": "1"},
    ):
        with pytest.raises(SettingsError):
            await lock.acquire(**arguments)
    assert lock_keys(nodes) == []


async def the_audit_has_a_report_per_node(lock: Any, nodes: LocalNodes) -> None:
    reports = await lock.audit()
    assert [report.node for report in reports] == [f"127.0.0.1:{node.port}/0" for node in nodes]
    assert all(report.is_reachable and report.marker for report in reports)


async def nodes_that_vote_are_not_bootstrapped_again(lock: Any, _nodes: LocalNodes) -> None:
    with pytest.raises(SettingsError):
        await lock.bootstrap()
    await lock.bootstrap(force=True)
    assert await (await lock.acquire("r")).release()


async def calls_leave_nothing_to_the_garbage_collector(lock: Any, _nodes: LocalNodes) -> None:
    await (await lock.acquire("warm-up")).release()
    gc.collect()
    gc.disable()
    try:
        for number in range(25):
            await (await lock.acquire("r")).release()
            await asyncio.sleep(0.01)
            left = sum(isinstance(each, Question) for each in gc.get_objects())
            if number > 5 and left <= 2:  # the last replies to these two may still be to come
                break
    finally:
        gc.enable()
    assert left <= 2


async def what_is_closed_refuses(lock: Any, _nodes: LocalNodes) -> None:
    await (await lock.acquire("r")).release()
    await lock.close()
    with pytest.raises(SettingsError):
        await lock.acquire("r")
    await lock.close()


SCENARIOS: list[Callable[[Any, LocalNodes], Awaitable[None]]] = [
    a_lease_is_had_extended_and_given_back,
    a_held_lock_is_refused_with_the_votes,
    a_second_release_is_none,
    an_ended_lease_is_lost_and_not_revived,
    a_successors_keys_are_left_alone,
    another_process_goes_on_with_a_lease,
    a_lock_renews_while_its_body_runs,
    a_contended_lock_never_runs_its_body,
    a_lock_that_was_lost_says_so_after_its_body,
    what_the_body_raises_comes_before_a_loss,
    a_loss_stays_known_when_the_lease_is_released,
    a_waiting_lock_is_had_when_it_is_free,
    waiting_ends_in_time,
    a_cap_ends_renewal,
    fencing_tokens_grow,
    arguments_that_can_never_work_are_refused,
    the_audit_has_a_report_per_node,
    nodes_that_vote_are_not_bootstrapped_again,
    calls_leave_nothing_to_the_garbage_collector,
    what_is_closed_refuses,
]


async def two_dead_nodes_are_no_contention(lock: Any, nodes: LocalNodes) -> None:
    await (await lock.acquire("warm-up")).release()
    for node in nodes[1:]:
        node.kill()
    with pytest.raises(QuorumUnreachableError) as caught:
        await lock.acquire("r")
    assert set(caught.value.causes) == {f"127.0.0.1:{node.port}/0" for node in nodes[1:]}
    assert await holds(lambda: lock_keys(nodes[:1]) == [])


async def one_stopped_node_costs_no_time(lock: Any, nodes: LocalNodes) -> None:
    await (await lock.acquire("warm-up")).release()
    nodes[2].pause()
    watch = Stopwatch()
    lease = await lock.acquire("r")
    assert await lease.release()
    assert watch.seconds < 0.5
    nodes[2].resume()
    assert await holds(lambda: lock_keys(nodes) == [])


async def a_lost_minority_is_healed(lock: Any, nodes: LocalNodes) -> None:
    lease = await lock.acquire("r")
    assert await holds(lambda: values(nodes, "r") == [lease.token] * 3)
    nodes[2].restart()
    assert await holds(lambda: ask(nodes[2].url, "PING"))
    deadline = time.monotonic() + 3.0
    while values(nodes, "r")[2] != lease.token and time.monotonic() < deadline:
        assert await lease.extend()
        await asyncio.sleep(0.05)
    assert values(nodes, "r") == [lease.token] * 3


HARMFUL = [two_dead_nodes_are_no_contention, one_stopped_node_costs_no_time, a_lost_minority_is_healed]


def _play(driver: str, scenario: Callable[..., Awaitable[None]], nodes: LocalNodes) -> None:
    async def play() -> None:
        lock = DRIVERS[driver](nodes.urls, 5.0, observer=lambda _event: None)
        try:
            await scenario(lock, nodes)
        finally:
            await lock.close()

    asyncio.run(play())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_healthy_nodes(driver: str, scenario: Any, trio: LocalNodes, serving: Any) -> None:
    serving(trio)
    _play(driver, scenario, trio)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("scenario", HARMFUL, ids=lambda scenario: scenario.__name__)
def test_on_nodes_that_fail(driver: str, scenario: Any, nodes3: LocalNodes, serving: Any) -> None:
    serving(nodes3)
    _play(driver, scenario, nodes3)


# -- the interfaces


def _public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


PAIRS = {"locks": (Redlock, AsyncRedlock), "leases": (Lease, AsyncLease)}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_have_the_same_names(pair: tuple[type, type]) -> None:
    assert set(_public(pair[0])) == set(_public(pair[1]))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_take_the_same_arguments(pair: tuple[type, type]) -> None:
    """Names, order, kinds and defaults."""
    plain, awaited = map(_public, pair)
    assert _parameters(pair[0]) == _parameters(pair[1])
    for name, member in plain.items():
        assert type(member) is type(awaited[name]), name
        if callable(member):
            assert _parameters(member) == _parameters(awaited[name]), name


def test_what_does_io_is_awaited_and_nothing_else() -> None:
    is_awaited = inspect.iscoroutinefunction
    for kind in (AsyncRedlock, AsyncLease):
        awaited = {name for name, member in _public(kind).items() if is_awaited(member)}
        assert awaited == _AWAITED & set(_public(kind))
