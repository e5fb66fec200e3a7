"""The reference load: 10,000 payments a minute, a tenth of them duplicates, one node down half of the time.

The node is killed after the first quarter and started again, empty, before the last one. A payment takes 5 ms; a
duplicate is a second message about one of the last payments. Latency is what our hooks take, measured in the worker:
how long a message waits in the queue depends on how often Dramatiq's consumer looks, which varies far more.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redlock.local import LocalNode, LocalNodes
from tests.benchmarks.harness import Options, Row, at_most, figure, percentile
from tests.benchmarks.processes import cpu_seconds, dramatiq_worker, wait_for
from tests.benchmarks.queues import MODULE, Queue
from tests.benchmarks.servers import started

RATE = 10_000 / 60
RECENT = 50
NOTE = "2 worker processes of 8 threads, Redis broker, 3 nodes, one of them down from 1/4 to 3/4 of the time"
LATENCY = "seconds in the middleware's hooks before and after the body, together, of payments that ran"


@dataclass(slots=True)
class Sent:
    """What was put into the queue, and how the queue stood."""

    payments: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    most_left: int = 0
    left_at_end: int = 0


def run(options: Options) -> Iterator[Row]:
    """Send for some minutes and wait for the rest."""
    total = int(RATE * (15 if options.quick else options.minutes * 60))
    with started(3) as nodes, LocalNodes(1) as brokers, tempfile.TemporaryDirectory() as log:
        queue = Queue(brokers.urls[0], "bench-load", nodes.urls, log)
        with dramatiq_worker(MODULE, queue.environment, queue.booted, processes=2) as pids:
            began, cpu = time.perf_counter(), cpu_seconds(*pids)
            sent = _send(queue, total, nodes[2])
            sent.left_at_end, ended = queue.left, time.perf_counter()
            wait_for(lambda: queue.left == 0, 120.0, "the last message", 0.02)
            drained = time.perf_counter() - ended
            cpu = (cpu_seconds(*pids) - cpu) / (time.perf_counter() - began)
        queue.close()
        runs = Counter((Path(log) / "runs").read_text().split())
        hooks = [line.split() for line in (Path(log) / "hooks").read_text().splitlines()]
    yield from _rows(sent, drained, cpu, runs, hooks)


def _send(queue: Queue, total: int, victim: LocalNode) -> Sent:
    """Put messages into the queue at their times; return what was sent."""
    chance, sent, began = random.Random(1), Sent(), time.monotonic()
    faults = {total // 4: victim.kill, total * 3 // 4: victim.restart}
    helpers = []
    for number in range(total):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        if number in faults:
            helpers.append(threading.Thread(target=faults[number]))
            helpers[-1].start()
        if number % 10 == 9:
            queue.put("pay", payment=chance.randrange(max(0, sent.payments - RECENT), sent.payments))
            sent.duplicates += 1
            sent.most_left = max(sent.most_left, queue.left)
        else:
            queue.put("pay", payment=sent.payments)
            sent.payments += 1
    sent.seconds = time.monotonic() - began
    for helper in helpers:
        helper.join()
    return sent


def _rows(sent: Sent, drained: float, cpu: float, runs: Counter[str], hooks: list[list[str]]) -> Iterator[Row]:
    total = sent.payments + sent.duplicates
    minute = f"{figure(total / sent.seconds * 60)} a minute for {sent.seconds:.0f} s"
    shown = f"{sent.left_at_end} left, at most {sent.most_left}; all done {drained:.2f} s later"
    behind = sent.left_at_end / RATE
    yield Row("kept up: behind when the last was sent", behind, "s", at_most(1.0), shown, minute, NOTE)
    lengths = [float(before) + float(after) for what, before, after in hooks if what == "run"]
    quantiles = {share: percentile(lengths, share) * 1e3 for share in (0.5, 0.99, 0.999)}
    shown = f"median {quantiles[0.5]:.2f} ms, 99.9 %: {quantiles[0.999]:.2f} ms, most {max(lengths) * 1e3:.0f} ms"
    yield Row("added latency, 99th percentile", quantiles[0.99], "ms", at_most(25), shown, "", LATENCY)
    outcomes = Counter(what for what, _, _ in hooks)
    shown = ", ".join(f"{count} {what}" for what, count in outcomes.most_common())
    lost = [number for number in range(sent.payments) if str(number) not in runs]
    yield Row(
        "payments lost", len(lost), "", at_most(0), shown, f"{sent.payments} payments, {sent.duplicates} duplicates"
    )
    twice = [number for number, count in runs.items() if count > 1]
    yield Row(
        "payments completed twice", len(twice), "", at_most(0), f"{runs.total()} bodies", f"{sent.payments} payments"
    )
    yield Row("CPU of both worker processes", cpu * 100, "%", None, "100 % is one core", "", NOTE)
