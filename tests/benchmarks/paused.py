"""One of three nodes hangs (SIGSTOP): what an acquisition and a claim cost against all healthy."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from redlock import Redlock
from redlock.local import LocalNodes
from tests.benchmarks.harness import Options, Row, at_most, interleaved, median_seconds
from tests.benchmarks.servers import started, unseen

NOTE = (
    "two groups of nodes, in turn; one node of the second hangs all the time; the first call after that is not counted"
)
THREADS = "most threads of this process seen after a round less those before the node hung; client of the second group"


def run(options: Options) -> Iterator[Row]:
    """Measure acquire, then claim and completion."""
    with started(3) as healthy, started(3) as ailing:
        yield from _locks(healthy, ailing, options)
        yield _claims(healthy, ailing, options)


def _locks(healthy: LocalNodes, ailing: LocalNodes, options: Options) -> Iterator[Row]:
    names = (f"bench:paused:{number}" for number in itertools.count())
    threads = []

    def acquisitions(client: Redlock) -> Callable[[], float]:
        held = []

        def measure() -> float:
            count = options.count(500, 100)
            found = median_seconds(
                lambda: held.append(client.acquire(next(names))), count, lambda: held.pop().release()
            )
            threads.append(threading.active_count())
            return found

        return measure

    first, second = (Redlock(nodes.urls, observer=unseen) for nodes in (healthy, ailing))
    for client in (first, second):
        client.acquire(next(names)).release()
    before = threading.active_count()
    ailing[0].pause()
    second.acquire(next(names)).release()
    found = interleaved({"hangs": acquisitions(second), "healthy": acquisitions(first)}, options.rounds)
    first.close()
    second.close()
    ailing[0].resume()
    yield Row(
        "acquire, one of 3 nodes hangs",
        found["hangs"].median / found["healthy"].median,
        target=at_most(1.2),
        ours="one hangs " + found["hangs"].shown("us", 1e6),
        other="all healthy " + found["healthy"].shown("us", 1e6),
        note=NOTE,
    )
    more = max(threads) - before
    yield Row("more threads while it hangs", more, "", at_most(0), str(max(threads)), str(before), THREADS)


def _claims(healthy: LocalNodes, ailing: LocalNodes, options: Options) -> Row:
    names = (f"bench:{number}" for number in itertools.count())

    def jobs(store: RedlockStore) -> Callable[[], float]:
        def job() -> None:
            claim = store.claim(ClaimRequest(next(names), "", "", 30_000, 86_400_000))
            if not isinstance(claim, Claim) or store.complete(claim, "") is None:
                raise RuntimeError(f"not claimed: {claim}")

        return lambda: median_seconds(job, options.count(500, 100))

    first, second = (RedlockStore(nodes.urls, observer=unseen) for nodes in (healthy, ailing))
    for store in (first, second):
        jobs(store)()
    ailing[0].pause()
    jobs(second)()
    found = interleaved({"hangs": jobs(second), "healthy": jobs(first)}, options.rounds)
    first.close()
    second.close()
    ailing[0].resume()
    return Row(
        "claim + complete, one of 3 nodes hangs",
        found["hangs"].median / found["healthy"].median,
        ours="one hangs " + found["hangs"].shown("us", 1e6),
        other="all healthy " + found["healthy"].shown("us", 1e6),
        note=NOTE,
    )
