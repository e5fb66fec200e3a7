"""How many round trips an acquisition takes, on five nodes over a network that adds five milliseconds.

Once by one thread, and once while eight share the connections: who asks must not wait for what others were told.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from redlock import Redlock
from tests.benchmarks.harness import Options, Row, at_most, interleaved, median_seconds, percentile
from tests.benchmarks.servers import started
from tests.benchmarks.slow_network import slow_network

NOTE = "a round trip is the median PING to one node through the same proxies, in turn with the acquisitions"
THREADS = 8
TOGETHER = f"{THREADS} threads of one process, up to 20 ms between their acquisitions; 95th percentile of all; " + NOTE


def run(options: Options) -> Iterator[Row]:
    """Measure acquire, and its release beside it."""
    count = options.count(40, 10)
    names = (f"bench:trips:{number}" for number in itertools.count())
    with started(5) as nodes, slow_network([node.port for node in nodes], 5.0) as urls:
        client, held = Redlock(urls), []
        connection = socket.create_connection(("127.0.0.1", int(urls[0].rpartition(":")[2])))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ping() -> None:
            connection.sendall(b"PING\r\n")
            connection.recv(64)

        def acquire() -> None:
            held.append(client.acquire(next(names)))

        def acquired() -> float:
            return median_seconds(acquire, count, lambda: held.pop().release())

        def released() -> float:
            return median_seconds(lambda: held.pop().release(), count, acquire)

        def together() -> float:
            with ThreadPoolExecutor(THREADS) as pool:
                return percentile([*pool.map(_acquisition(client), range(THREADS * count))], 0.95)

        acquire()
        sides = {"ping": lambda: median_seconds(ping, count), "acquire": acquired, "acquire by 8 threads": together}
        found = interleaved(sides, options.rounds)
        acquire()
        found |= {"release": interleaved({"release": released}, options.rounds)["release"]}
        connection.close()
        client.close()
    for what, target in (("acquire", at_most(1.3)), ("release", None), ("acquire by 8 threads", None)):
        yield Row(
            f"{what}, 5 nodes, replies 5 ms later",
            found[what].median / found["ping"].median,
            "trips",
            target,
            found[what].shown("ms", 1e3),
            "PING " + found["ping"].shown("ms", 1e3),
            TOGETHER if "threads" in what else NOTE,
        )


def _acquisition(client: Redlock) -> Callable[[int], float]:
    def measure(number: int) -> float:
        time.sleep(random.uniform(0, 0.02))
        started = time.perf_counter()
        lease = client.acquire(f"bench:trips:together:{number}")
        lasted = time.perf_counter() - started
        lease.release()
        return lasted

    return measure
