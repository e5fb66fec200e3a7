"""The asyncio driver with 100 tasks at once against the thread driver with 8 threads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from redlock import AsyncRedlock, Redlock
from tests.benchmarks.harness import Options, Row, at_least, interleaved
from tests.benchmarks.servers import started

TASKS, THREADS = 100, 8
NOTE = "acquire and release of free locks, 3 nodes, one process; pairs per second"


def run(options: Options) -> Iterator[Row]:
    """Measure both on the same nodes."""
    total = options.count(4_000, 800)
    names = (f"bench:tasks:{number % 5_000}" for number in itertools.count())
    with started(3) as nodes, ThreadPoolExecutor(THREADS) as pool:
        client, loop = Redlock(nodes.urls), asyncio.new_event_loop()
        async_client = AsyncRedlock(nodes.urls)

        def thread(mine: list[str]) -> None:
            for name in mine:
                client.acquire(name).release()

        async def task(mine: list[str]) -> None:
            for name in mine:
                await (await async_client.acquire(name)).release()

        async def tasks() -> None:
            await asyncio.gather(*map(task, _shares(names, total, TASKS)))

        def by_threads() -> float:
            shares = _shares(names, total, THREADS)
            began = perf_counter()
            list(pool.map(thread, shares))
            return total / (perf_counter() - began)

        def by_tasks() -> float:
            began = perf_counter()
            loop.run_until_complete(tasks())
            return total / (perf_counter() - began)

        found = interleaved({"tasks": by_tasks, "threads": by_threads}, options.rounds)
        loop.run_until_complete(async_client.close())
        loop.close()
        client.close()
    yield Row(
        f"throughput, {TASKS} tasks against {THREADS} threads",
        found["tasks"].median / found["threads"].median,
        target=at_least(1.0),
        ours="tasks " + found["tasks"].shown("/s"),
        other="threads " + found["threads"].shown("/s"),
        note=NOTE,
    )


def _shares(names: Iterator[str], total: int, workers: int) -> list[list[str]]:
    return [list(itertools.islice(names, total // workers)) for _ in range(workers)]
