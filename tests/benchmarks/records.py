"""A million completed records on each node: whether claims slow down, and how large a record is.

The records are written as completions leave them, text and retention, but directly: pipelined SET on a bare socket.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import redis

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.keys import record_name
from dramatiq_idem.record import Record, State
from redlock import Settings, new_token
from redlock.local import LocalNodes, available_servers
from redlock.resp import pack
from tests.benchmarks.harness import Options, Row, at_most, figure, interleaved, median_seconds
from tests.benchmarks.servers import info, started

RETENTION_MS = 86_400_000
NOTE = "one thread, free keys; two groups of three nodes, in turn, one of them with the records"
SIZE = "MEMORY USAGE of the record of a message by its id, no result kept, after a claim and completion by RedlockStore"
_SETTINGS = Settings(namespace="idem")
_BATCH = 1_000


def run(options: Options) -> Iterator[Row]:
    """Measure claims, then one record on each kind of server."""
    count = options.count(1_000_000, 50_000)
    with started(3) as empty, started(3) as full:
        before = _used(full)
        _fill(full, count)
        each = (_used(full) - before) / count / len(full)
        stores = {name: RedlockStore(nodes.urls) for name, nodes in (("full", full), ("empty", empty))}
        sides = {name: _claims(store, options.count(500, 100)) for name, store in stores.items()}
        found = interleaved(sides, options.rounds)
        for store in stores.values():
            store.close()
    yield Row(
        f"claim, {count:,} records on each node",
        found["full"].median / found["empty"].median,
        target=at_most(1.1),
        ours="full " + found["full"].shown("us", 1e6),
        other="empty " + found["empty"].shown("us", 1e6),
        note=NOTE,
    )
    yield Row("memory for each of these records", each, "bytes", ours=f"{figure(each * count / 1e6)} MB on a node")
    for server in available_servers():
        yield _size(server)


def _name() -> str:
    return record_name("pay", str(uuid.uuid4()))


def _fill(nodes: LocalNodes, count: int) -> None:
    """Write completed records straight into all nodes, the same into each."""
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", node.port))) for node in nodes]
        for start in range(0, count, _BATCH):
            size = min(_BATCH, count - start)
            batch = b"".join(_completed() for _ in range(size))
            for link in links:
                link.sendall(batch)
            for link in links:
                left = size * len(b"+OK\r\n")
                while left:
                    left -= len(link.recv(left))


def _completed() -> bytes:
    record = Record(State.DONE, 0, 1_800_000_000 << 20, new_token(), 0, 0, "", "")
    return pack(("SET", _SETTINGS.key("record", _name()), record.text(), "PX", RETENTION_MS))


def _used(nodes: LocalNodes) -> int:
    return sum(info(url, "memory")["used_memory"] for url in nodes.urls)


def _claims(store: RedlockStore, count: int) -> Callable[[], float]:
    def claim() -> None:
        if not isinstance(store.claim(ClaimRequest(_name(), "", "", 30_000, RETENTION_MS)), Claim):
            raise RuntimeError("not claimed")

    return lambda: median_seconds(claim, count)


def _size(server: str) -> Row:
    with started(1, binary=server) as nodes:
        store, name = RedlockStore(nodes.urls), _name()
        claim = store.claim(ClaimRequest(name, "", "", 30_000, RETENTION_MS))
        store.complete(claim, "")
        store.close()
        with redis.Redis.from_url(nodes.urls[0]) as client:
            key = _SETTINGS.key("record", name)
            size, text = client.memory_usage(key), client.get(key)
            about = client.info("server")
    version = about.get("valkey_version") or about["redis_version"]
    kind = Path(server).name.removesuffix("-server")
    shown = f"{len(key)} bytes of key, {len(text)} of text"
    return Row(f"one record on {kind} {version}", size, "bytes", ours=shown, note=SIZE)
