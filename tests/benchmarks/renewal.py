"""What it costs to keep 1,000 leases alive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from unittest import mock

from redlock import Redlock
from redlock.link import Link
from tests.benchmarks.harness import Options, Row, at_most
from tests.benchmarks.servers import reset_statistics, script_calls, started

TTL = 10.0
NOTE = (
    "user and system time of this process, by its own clock, while it does nothing but renew; rounds counted in whole"
)
PIPELINES = (
    "flushes of a connection that had new commands, counted in the client; a round is as many EVALSHA as there are "
    "leases, counted by the node (commandstats); a pipeline that takes several writes is still one"
)


def run(options: Options) -> Iterator[Row]:
    """Hold leases for some renewal rounds."""
    count = options.count(1_000, 200)
    observed = options.count(14, 7)  # seconds: a lease is renewed each third of its ttl
    with started(3) as nodes, ExitStack() as held:
        client = Redlock(nodes.urls, ttl=TTL)
        leases = [held.enter_context(client.lock(f"bench:renewal:{number}")) for number in range(count)]
        # After a round those that were acquired one by one are renewed together. A node that answered the first round
        # late may get the script's text, lease by lease, with the second: start-up is no part of this.
        time.sleep(TTL * 0.8)
        pipelines, writes = Counter(), Counter()
        reset_statistics(nodes.urls)
        with mock.patch.object(Link, "flush", _counting(pipelines, writes)):
            cpu, began = time.process_time(), time.perf_counter()
            time.sleep(observed)
            cpu, lasted = time.process_time() - cpu, time.perf_counter() - began
        renewals = [script_calls(url) for url in nodes.urls]
        lost = sum(lease.lost for lease in leases)
        rounds = renewals[0] / count
        held.pop_all()  # they run out
        client.close()
    yield Row(
        f"{count:,} leases of {TTL:g} s: share of one core",
        cpu / lasted * 100,
        "%",
        at_most(1.0),
        f"{cpu * 1e3:.1f} ms CPU in {lasted:.1f} s, {rounds:.2g} rounds, {lost} lost",
        note=NOTE,
    )
    yield Row(
        "pipelines for each node and round",
        sum(pipelines.values()) / len(pipelines) / rounds if rounds and pipelines else None,
        "",
        at_most(1.0),
        f"{sorted(pipelines.values())} pipelines, {sorted(writes.values())} writes, {renewals} renewals",
        note=PIPELINES,
    )


def _counting(pipelines: Counter[int], writes: Counter[int]):
    """Return `Link.flush`, counting what it writes for each connection."""
    original, queued = Link.flush, Counter()

    def flush(link: Link) -> None:
        if link.wants_to_write:
            writes[id(link)] += 1
            pipelines[id(link)] += len(link._slots) > queued[id(link)]
        original(link)
        queued[id(link)] = len(link._slots) if link.wants_to_write else 0

    return flush
