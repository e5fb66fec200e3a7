"""Locks and unlocks with one library, in an interpreter where only that library is installed.

Arguments: the library, then the nodes' addresses. It prints "ready" and the versions; for each number that it reads, it
acquires and releases that often and prints the seconds for one pair. A script, run by its path: nothing else of ours
may be imported here, for two of the libraries have the same module name as our own.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

NAMES = [
    f"bench:rival:{number}" for number in range(50)
]  # taken again soon: a release that releases nothing would be noticed
TTL_MS = 10_000


def ours(urls: list[str]) -> Callable[[str], None]:
    from redlock import Redlock

    client = Redlock(urls)

    def once(name: str) -> None:
        client.acquire(name).release()

    return once


def redlock_py(urls: list[str]) -> Callable[[str], None]:
    from redlock import Redlock

    client = Redlock(urls)

    def once(name: str) -> None:
        lock = client.lock(name, TTL_MS)
        if not lock:
            raise RuntimeError("not acquired")
        client.unlock(lock)

    return once


def redlock_ng(urls: list[str]) -> Callable[[str], None]:
    from redlock import Redlock

    client = Redlock(urls)

    def once(name: str) -> None:
        lock = client.acquire(name, TTL_MS)
        if lock is None:
            raise RuntimeError("not acquired")
        client.release(lock)

    return once


def pottery(urls: list[str]) -> Callable[[str], None]:
    from pottery import Redlock
    from redis import Redis

    masters = {Redis.from_url(url) for url in urls}
    locks = {name: Redlock(key=name, masters=masters, auto_release_time=TTL_MS / 1000) for name in NAMES}

    def once(name: str) -> None:
        if not locks[name].acquire(blocking=False):
            raise RuntimeError("not acquired")
        locks[name].release()

    return once


LIBRARIES = {"dramatiq-idem": ours, "redlock-py": redlock_py, "redlock-ng": redlock_ng, "pottery": pottery}


def main(library: str, urls: list[str]) -> None:
    once = LIBRARIES[library](urls)
    names = itertools.cycle(NAMES)
    once(next(names))
    print(f"ready {library} {version(library)} on redis-py {version('redis')}", flush=True)
    for line in sys.stdin:
        count = int(line)
        started = time.perf_counter()
        for _ in range(count):
            once(next(names))
        print((time.perf_counter() - started) / count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
