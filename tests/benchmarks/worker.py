"""No-op actors in a real Dramatiq worker on a Redis broker: one process, 8 threads, with the middleware and without.

A round fills the queue while the worker is stopped (SIGSTOP), lets it go, and times what is done after the first
twentieth: how long an idle consumer sleeps before it looks at its queue is no part of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from time import perf_counter

from redlock.local import LocalNodes
from tests.benchmarks.harness import Options, Row, Samples, at_least, at_most, interleaved
from tests.benchmarks.processes import cpu_seconds, dramatiq_worker, wait_for
from tests.benchmarks.queues import MODULE, Queue
from tests.benchmarks.servers import reset_statistics, script_calls, started

NOTE = "messages per second of a queue that is full; 0.7 is the goal, 0.5 the least that is acceptable"
PREFETCH = (
    "by default a worker fetches two messages ahead per thread and then pauses, which hides work; here it does not"
)
CPU = "user and system time by /proc, in steps of 10 ms over a round"
COMMANDS = (
    "EVALSHA and EVAL in each node's commandstats over all messages of the rounds; the highest of the three nodes"
)


class Side:
    """A worker, measured round by round; the first round is left out, as it warms up."""

    def __init__(self, queue: Queue, pid: int, nodes: LocalNodes, count: int) -> None:
        self._queue, self._pid, self._nodes, self._count = queue, pid, nodes, count
        self.worker, self.nodes, self.commands = Samples(), Samples(), Samples()
        self._is_warm = False

    def __call__(self) -> float:
        """Return the messages per second of one round."""
        os.kill(self._pid, signal.SIGSTOP)
        for _ in range(self._count):
            self._queue.put("nothing")
        reset_statistics(self._nodes.urls)
        os.kill(self._pid, signal.SIGCONT)
        wait_for(lambda: self._queue.left <= self._count * 0.95, 30.0, "the first message", 0.001)
        left, began, before = self._queue.left, perf_counter(), self._cpu()
        wait_for(lambda: self._queue.left == 0, 300.0, "the last message")
        lasted, after = perf_counter() - began, self._cpu()
        if self._is_warm:
            self.worker.append((after[0] - before[0]) / left)
            self.nodes.append((after[1] - before[1]) / left)
            self.commands.append(max(map(script_calls, self._nodes.urls)) / self._count)
        self._is_warm = True
        return left / lasted

    def _cpu(self) -> tuple[float, float]:
        return cpu_seconds(self._pid), cpu_seconds(*(node.pid for node in self._nodes))


def run(options: Options) -> Iterator[Row]:
    """Measure both workers in turn, as they are by default and where fetching is no limit."""
    with started(3) as nodes, LocalNodes(1) as brokers:
        yield from _throughput(nodes, brokers.urls[0], 0, options)
        yield from _throughput(nodes, brokers.urls[0], 1_000, options)


def _throughput(nodes: LocalNodes, broker: str, prefetch: int, options: Options) -> Iterator[Row]:
    """Measure with a number of messages that are fetched ahead; 0 for Dramatiq's default."""
    with ExitStack() as stack:
        sides = {}
        for name, urls in (("with", nodes.urls), ("without", [])):
            queue = Queue(broker, f"bench-{name}-{prefetch}", urls)
            stack.callback(queue.close)
            environment = {**queue.environment, "dramatiq_queue_prefetch": str(prefetch)}
            (pid,) = stack.enter_context(dramatiq_worker(MODULE, environment, queue.booted))
            sides[name] = Side(queue, pid, nodes, options.count(5_000, 500))
        found = interleaved(sides, options.count(7, 2))
    protected, bare = found["with"], found["without"]
    shown = "with " + protected.shown("/s"), "without " + bare.shown("/s")
    ratio = protected.median / bare.median
    if prefetch:
        yield Row(f"no-op messages, {prefetch:,} fetched ahead", ratio, "x", None, *shown, PREFETCH)
        return
    yield Row("no-op messages, with the middleware", ratio, "x", at_least(0.7), *shown, NOTE)
    ours, other = sides["with"].worker, sides["without"].worker
    shown = "with " + ours.shown("us", 1e6), "without " + other.shown("us", 1e6)
    yield Row("CPU per message, worker", ours.median / other.median, "x", None, *shown, CPU)
    ours = sides["with"].nodes
    yield Row("CPU per message, all 3 nodes", ours.median * 1e6, "us", None, ours.shown("us", 1e6), "", CPU)
    ours = sides["with"].commands
    yield Row("commands per job and node", ours.median, "", at_most(2.0), ours.shown(""), "", COMMANDS)
