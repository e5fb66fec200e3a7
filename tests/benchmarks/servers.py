"""The nodes that are measured, and what they say about themselves."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from redlock import Event, Redlock
from redlock.local import LocalNodes

NAMESPACES = ("redlock", "idem")  # the defaults of Redlock and RedlockStore
# What our scripts call inside of themselves is listed in commandstats too; these are sent by a client.
SCRIPT_CALLS = ("evalsha", "eval")
LONGEST_WAIT = 10
"""Seconds for which a bare connection waits for a reply."""


@contextmanager
def started(count: int, **options: Any) -> Iterator[LocalNodes]:
    """Start nodes that vote at once, for locks and for records."""
    with LocalNodes(count, **options) as nodes:
        let_vote(nodes.urls)
        yield nodes


def let_vote(urls: list[str]) -> None:
    """Spare new nodes the wait of those that may have forgotten."""
    for namespace in NAMESPACES:
        redlock = Redlock(urls, namespace=namespace, node_timeout=5.0, observer=unseen)
        redlock.bootstrap()
        redlock.close()


def connected(nodes: LocalNodes) -> list[socket.socket]:
    """Return a bare connection to each node; a receive blocks in one system call, which the kernel ends in time."""
    connections = [socket.create_connection(("127.0.0.1", node.port)) for node in nodes]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", LONGEST_WAIT, 0))
    return connections


def unseen(event: Event) -> None:
    """Take an event and do nothing: what is expected here need not be logged."""


def info(url: str, section: str) -> dict[str, Any]:
    """Return a section of a server's INFO."""
    with redis.Redis.from_url(url, socket_timeout=10.0) as client:
        return client.info(section)


def reset_statistics(urls: Iterable[str]) -> None:
    """Let the servers count from zero."""
    for url in urls:
        with redis.Redis.from_url(url, socket_timeout=10.0) as client:
            client.config_resetstat()


def calls(url: str) -> Counter[str]:
    """Return how often each command was called since the statistics were reset, those inside of scripts included."""
    found: Counter[str] = Counter()
    for name, numbers in info(url, "commandstats").items():
        found[name.removeprefix("cmdstat_")] = numbers["calls"]
    return found


def script_calls(url: str) -> int:
    """Return how many scripts a server ran since its statistics were reset."""
    found = calls(url)
    return sum(found[name] for name in SCRIPT_CALLS)


def microseconds_per_call(url: str, command: str) -> float:
    """Return what one call of a command costs the server, by its own measurement."""
    return float(info(url, "commandstats")[f"cmdstat_{command}"]["usec_per_call"])
