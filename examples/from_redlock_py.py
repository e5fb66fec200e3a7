"""Coming from redlock-py: its two methods under the same keys, so that old and new processes exclude each other.

python examples/from_redlock_py.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys

from redlock.compat import Lock, Redlock

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")


def main() -> None:
    """Lock a resource, fail to lock it again, and lock it when it is free."""
    manager = Redlock(NODES, retry_count=2)  # it was: from redlock import Redlock
    first = manager.lock("report", 10_000)  # milliseconds
    second = manager.lock("report", 10_000)
    if not isinstance(first, Lock):
        sys.exit("no majority of the nodes can be reached, or somebody else has the lock")
    print(f"first: {first.resource}, valid for {first.validity / 1000:.0f} s; second: {second}")
    manager.unlock(first)
    third = manager.lock("report", 10_000)
    print(f"after unlock: {isinstance(third, Lock)}")
    if isinstance(third, Lock):
        manager.unlock(third)
    manager.close()


if __name__ == "__main__":
    main()
