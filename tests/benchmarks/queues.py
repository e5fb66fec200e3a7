"""The bench's end of the broker: puts messages in, and sees how many are left."""

from __future__ import annotations

from collections.abc import Sequence

from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

MODULE = "tests.benchmarks.jobs"


class Queue:
    """One worker's queue on a broker.

    Args:
        url: The broker's server.
        namespace: Keeps two workers on one server apart.
        nodes: The middleware's nodes; none for a worker without it.
        log: Folder where payments note what happened.
    """

    def __init__(self, url: str, namespace: str, nodes: Sequence[str], log: str = "") -> None:
        self.environment = {"BENCH_BROKER": url, "BENCH_NAMESPACE": namespace, "BENCH_NODES": " ".join(nodes)}
        self.environment |= {"BENCH_LOG": log} if log else {}
        self._broker = RedisBroker(url=url, namespace=namespace)
        self._broker.declare_queue("default")

    def put(self, actor: str, **arguments: int) -> None:
        """Enqueue one message."""
        self._broker.enqueue(Message("default", actor, (), arguments, {}))

    def booted(self) -> set[int]:
        """Return the worker processes that have booted."""
        return {int(pid) for pid in self._broker.client.smembers(f"{self._broker.namespace}:booted")}

    @property
    def left(self) -> int:
        """How many messages are not acknowledged yet, delayed ones included."""
        return sum(
            self._broker.client.hlen(f"{self._broker.namespace}:{name}.msgs") for name in ("default", "default.DQ")
        )

    def close(self) -> None:
        """Close the connection."""
        self._broker.close()
