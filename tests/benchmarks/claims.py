"""Claim and completion on three nodes against what one would write by hand: a lock on one node, with redis-py."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import redis

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from redlock import new_token
from redlock.local import LocalNodes
from tests.benchmarks.group import GroupFloor
from tests.benchmarks.harness import Options, Row, Samples, at_least, interleaved
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.servers import started

THREADS = 8
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
NOTE = (
    "8 threads of one process; ours: RedlockStore, 3 nodes; naive: redis-py, SET NX PX and compare-and-delete, 1 node"
)
FLOOR = (
    "8 threads of one process, 3 nodes; floor: the same commands, all that wait as one pipeline per node, on blocking "
    "sockets; without rules, votes, time-outs, undos and faults"
)
CPU = NOTE + "; user and system time by /proc, in steps of 10 ms over a round"


def run(options: Options) -> Iterator[Row]:
    """Measure throughput, and the CPU time that went into it."""
    total = options.count(4_000, 800)
    with started(3) as nodes, started(1) as single, ThreadPoolExecutor(THREADS) as pool:
        store, client = RedlockStore(nodes.urls), redis.Redis.from_url(single.urls[0])
        floor = GroupFloor(nodes)
        sides = {
            "ours": Side(_ours(store), nodes, pool, total),
            "naive": Side(_naive(client), single, pool, total),
            "floor": Side(floor.job, nodes, pool, total),
        }
        found = interleaved(sides, options.rounds)
        for each in (store, client, floor):
            each.close()
    ours, naive = found["ours"], found["naive"]
    yield Row(
        "claim + complete: jobs per second",
        ours.median / naive.median,
        target=at_least(1.2),
        ours=ours.shown("/s"),
        other="naive " + naive.shown("/s"),
        note=NOTE,
    )
    shown = ours.shown("/s"), "floor " + found["floor"].shown("/s")
    yield Row("claim + complete: share of the floor", ours.median / found["floor"].median, "x", None, *shown, FLOOR)
    for what, kind in (("CPU per job, client", "client"), ("CPU per job, all nodes", "nodes")):
        mine, theirs = (getattr(sides[name], kind) for name in ("ours", "naive"))
        shown = mine.shown("us", 1e6), "naive " + theirs.shown("us", 1e6)
        yield Row(what, mine.median * 1e6, "us", None, *shown, CPU)


class Side:
    """Runs jobs on all threads and notes the CPU time; the first round is left out, as it warms up."""

    def __init__(self, job: Callable[[], None], nodes: LocalNodes, pool: ThreadPoolExecutor, total: int) -> None:
        self._job, self._pool, self._total = job, pool, total
        self._pids = [node.pid for node in nodes]
        self.client, self.nodes = Samples(), Samples()
        self._is_warm = False

    def __call__(self) -> float:
        """Return the jobs per second of one round."""
        own, theirs, began = time.process_time(), cpu_seconds(*self._pids), time.perf_counter()
        list(self._pool.map(self._jobs, [self._total // THREADS] * THREADS))
        lasted = time.perf_counter() - began
        if self._is_warm:
            self.client.append((time.process_time() - own) / self._total)
            self.nodes.append((cpu_seconds(*self._pids) - theirs) / self._total)
        self._is_warm = True
        return self._total / lasted

    def _jobs(self, count: int) -> None:
        for _ in range(count):
            self._job()


def _ours(store: RedlockStore) -> Callable[[], None]:
    names = itertools.count()

    def job() -> None:
        claim = store.claim(ClaimRequest(f"bench:{next(names)}", "", "", 30_000, 86_400_000))
        if not isinstance(claim, Claim) or store.complete(claim, "") is None:
            raise RuntimeError(f"not claimed: {claim}")

    return job


def _naive(client: redis.Redis) -> Callable[[], None]:
    names, release = itertools.count(), client.register_script(RELEASE)

    def job() -> None:
        name, token = f"bench:{next(names)}", new_token()
        if not client.set(name, token, nx=True, px=30_000) or not release(keys=[name], args=[token]):
            raise RuntimeError("not locked")

    return job
