"""A conditional write: a run that was paused for longer than its lease cannot overwrite what a later run wrote.

python examples/fenced_sql.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sqlite3
import sys

import dramatiq
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency, current_run

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")
UPDATE = "UPDATE stock SET count = ?, fence = ? WHERE item = ? AND fence < ?"

broker = StubBroker()
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)

database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER, fence INTEGER)")
database.execute("INSERT INTO stock VALUES ('bolt', 100, 0)")
fences: list[int] = []


def write(item: str, count: int, fence: int) -> bool:
    """Set a count unless a later run has set it; the database decides, whatever the caller believes."""
    return database.execute(UPDATE, (count, fence, item, fence)).rowcount == 1


@dramatiq.actor(idempotency_key="recount:{item}", min_backoff=10)
def recount(item: str) -> None:
    """Count, and write under this run's fencing token; it grows with every run of the key."""
    run = current_run()
    if run is None:
        raise RuntimeError("to be run by a worker")
    fences.append(run.fencing_token)
    if len(fences) == 1:
        raise TimeoutError("the first run gets no further for now")
    print(f"second run writes 85: {write(item, 85, fences[-1])}")


def main() -> None:
    """Let the first run break off and be repeated; then let it wake up with what it had counted long ago."""
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    recount.send("bolt")
    broker.join("default")
    worker.stop()
    print(f"first run writes 90: {write('bolt', 90, fences[0])}")
    (count,) = database.execute("SELECT count FROM stock").fetchone()
    print(f"in stock: {count}")


if __name__ == "__main__":
    main()
