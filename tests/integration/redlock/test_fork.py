"""Forked children of both drivers: what they use, exit with or collect leaves the parent's keys and sockets alone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from redlock import AsyncRedlock, LockHeldError, Redlock
from redlock.local import LocalNodes
from tests.tools.forking import in_child
from tests.tools.peek import ask, happens, lock_keys, run_python, values

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # forking is what is tested


def in_new_loop(work: Callable[[], Any]) -> str:
    """Run a coroutine function in a forked child, on an event loop of the child's own."""

    def play() -> Any:
        asyncio._set_running_loop(None)  # the parent's, which the child has inherited
        with asyncio.Runner() if sys.version_info >= (3, 11) else _Runner() as runner:
            return runner.run(work())

    return in_child(play)


class _Runner:
    def __enter__(self) -> Any:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def __exit__(self, *_exception: object) -> None:
        self._loop.close()


def ports(nodes: LocalNodes) -> list[set[str]]:
    """Return the addresses of all connections to each node, but for the one that asks."""
    lists = [ask(node.url, "CLIENT", "LIST").splitlines() for node in nodes]
    return [{_field(line, "addr") for line in lines if _field(line, "cmd") != "client|list"} for lines in lists]


def _field(line: str, name: str) -> str:
    return dict(word.split("=", 1) for word in line.split())[name]


def test_childs_exit_and_collection_leave_the_parent_alone(trio: LocalNodes, serving: Any) -> None:
    """L63: keys, connections and renewal of the parent outlive a child that ends as Python does."""
    serving(trio).close()
    code = """
import gc, os, sys, time
from redlock import Redlock
redlock = Redlock(sys.argv[1:], ttl=0.6, observer=lambda event: None)
with redlock.lock("r") as lease:
    token = lease.token
    pid = os.fork()
    if pid == 0:
        del lease, redlock
        gc.collect()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1  # leaving the block says that it is the parent's
    time.sleep(0.9)
    lease.check()
    assert lease.extend()
print("kept")
"""
    code = code.replace("lease, redlock\n", "lease\n")
    output = run_python_with_errors(code, *trio.urls)
    assert output == "kept\n"
    assert happens(lambda: lock_keys(trio) == [])


def run_python_with_errors(code: str, *arguments: str) -> str:
    """Run a program whose child complains on standard error, on purpose; return what it printed."""
    quiet = "import os, sys\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
    return run_python(quiet + code, *arguments)


def test_child_opens_sockets_of_its_own(trio: LocalNodes, serving: Any) -> None:
    """L63: the parent's stay open and in use by the parent only."""
    redlock: Redlock = serving(trio)
    lease = redlock.acquire("parent's")
    assert happens(lambda: None not in values(trio, "parent's"))
    before = ports(trio)

    def work() -> Any:
        own = redlock.acquire("child's")
        assert happens(lambda: all(now - then for now, then in zip(ports(trio), before, strict=True)))
        return own.release()

    assert in_child(work) == "True"
    assert happens(lambda: ports(trio) == before)
    assert lease.extend()
    assert lease.release()


def test_child_that_closes_leaves_the_parents_connections(trio: LocalNodes, serving: Any) -> None:
    redlock: Redlock = serving(trio)
    lease = redlock.acquire("r")
    assert happens(lambda: None not in values(trio, "r"))
    before = ports(trio)
    assert in_child(redlock.close) == "None"
    assert ports(trio) == before
    assert lease.release()


def test_asyncio_child_may_not_use_its_parents_lease(trio: LocalNodes, serving: Any) -> None:
    """L63: neither release nor extend; the keys stay, and the parent goes on."""
    serving(trio)

    async def scenario() -> None:
        redlock = AsyncRedlock(trio.urls, 5.0, observer=lambda _event: None)
        lease = await redlock.acquire("r")
        assert await lease.extend()
        await asyncio.sleep(0.05)
        before = ports(trio)
        for verb in (lease.release, lease.extend):
            assert in_new_loop(verb).startswith("LeaseLostError")
        assert values(trio, "r") == [lease.token] * 3
        assert ports(trio) == before
        assert await lease.extend()
        assert await lease.release()
        await redlock.close()

    asyncio.run(scenario())


def test_asyncio_child_takes_locks_of_its_own(trio: LocalNodes, serving: Any) -> None:
    """L63: with the inherited object, on its own loop and sockets; both exclude each other, and the child renews."""
    serving(trio)

    async def scenario() -> None:
        redlock = AsyncRedlock(trio.urls, 5.0, observer=lambda _event: None)
        async with redlock.lock("parent's", ttl=0.6) as lease:
            before = ports(trio)

            async def work() -> list[bool]:
                outcome = []
                async with redlock.lock("child's", ttl=0.3) as own:
                    await asyncio.sleep(0.5)
                    outcome.append(not own.lost)
                    try:
                        await redlock.acquire("parent's")
                    except LockHeldError:
                        outcome.append(True)
                await redlock.close()
                return outcome

            assert await asyncio.to_thread(in_new_loop, work) == "[True, True]"
            assert ports(trio) == before
            lease.check()
            assert await lease.extend()
        await redlock.close()

    asyncio.run(scenario())
    assert happens(lambda: lock_keys(trio) == [])


def test_asyncio_childs_exit_and_collection_leave_the_parent_alone(trio: LocalNodes, serving: Any) -> None:
    """L63: nothing is sent or closed for the parent when the child's objects are collected."""
    serving(trio)

    async def scenario() -> None:
        redlock = AsyncRedlock(trio.urls, 5.0, observer=lambda _event: None)
        async with redlock.lock("r", ttl=2.0) as lease:
            await asyncio.sleep(0.05)
            before = ports(trio)

            def work() -> str:
                asyncio._set_running_loop(None)
                redlock._nodes = redlock._renewer = None  # type: ignore[assignment]
                gc.collect()
                return "collected"

            assert in_child(work) == "'collected'"
            assert ports(trio) == before
            await asyncio.sleep(2.2)
            lease.check()
            assert values(trio, "r") == [lease.token] * 3
        await redlock.close()

    asyncio.run(scenario())


def test_child_of_a_process_whose_threads_ask_starts_afresh(trio: LocalNodes, serving: Any) -> None:
    """Forked at any moment of other threads' sending and reading: it has its own connections, and closes at once."""
    redlock = serving(trio)
    ends = threading.Event()

    def work(number: int) -> None:
        while not ends.is_set():
            redlock.acquire(f"parents {number}").release()

    def play() -> str:
        lease = redlock.acquire("childs", ttl=1.0)
        assert lease.release()
        began = time.monotonic()
        redlock.close()
        return "at once" if time.monotonic() - began < 0.5 else "late"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert {in_child(play) for _ in range(25)} == {"'at once'"}
    finally:
        ends.set()
        for thread in threads:
            thread.join(5.0)
