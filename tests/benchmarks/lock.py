"""Acquire and release against the least that any client has to do, and what the script costs the server.

The floor sends the very bytes that our client sends, ready-made, on blocking sockets: to all nodes, then it reads one
reply from each without looking at it; once for acquire and once for release. What is above it is our own work:
tokens, packing, parsing, deciding.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import redis

from redlock import Redlock, new_token
from redlock.local import LocalNodes
from redlock.resp import pack
from redlock.wire import packed
from tests.benchmarks.harness import Options, Row, Samples, at_most, interleaved, mean_seconds
from tests.benchmarks.servers import connected, microseconds_per_call, reset_statistics, started

FLOOR = "floor: the same bytes, ready-made, on blocking sockets; replies of all nodes read but not parsed"
SCRIPT = "microseconds in the server for each call, by its commandstats; both on one connection"
WIRE = "microseconds for each command of one pipeline on one connection, by the client's clock"
_NAMES = 500


class Floor:
    """Sends ready-made pairs of acquire and release to all nodes."""

    def __init__(self, nodes: LocalNodes) -> None:
        self._sockets = connected(nodes)
        self._pairs = itertools.cycle(ready_made(nodes.urls, _NAMES))

    def once(self) -> list[bytes]:
        """Acquire and release once; return what the nodes said to the release."""
        acquire, release = next(self._pairs)
        self._ask(acquire)
        return self._ask(release)

    def _ask(self, data: bytes) -> list[bytes]:
        for connection in self._sockets:
            connection.sendall(data)
        return [connection.recv(65_536) for connection in self._sockets]

    def close(self) -> None:
        """Close the sockets."""
        for connection in self._sockets:
            connection.close()


def ready_made(urls: list[str], count: int) -> list[tuple[bytes, bytes]]:
    """Return what our client sends to each node for some acquisitions and releases; make the scripts known."""
    rules = Redlock(urls)._rules
    protocol, ttl_ms = rules.protocol, rules.settings.ttl_ms("ttl")
    pairs = []
    for number in range(count):
        resource, token = f"bench:floor:{number}", new_token()
        commands = protocol._commands.acquire(resource, token, ttl_ms), protocol._commands.release(resource, token)
        pairs.append(tuple(map(packed, commands)))
    for url in urls:
        with redis.Redis.from_url(url) as node:
            for command in commands:
                node.script_load(command.script.text)
    return pairs


def run(options: Options) -> Iterator[Row]:
    """Measure with three and with five nodes, then the scripts."""
    for size in (3, 5):
        with started(size) as nodes:
            yield _against_floor(nodes, options)
    with started(1) as nodes:
        yield from _in_server(nodes, options)


def _against_floor(nodes: LocalNodes, options: Options) -> Row:
    client, floor = Redlock(nodes.urls), Floor(nodes)
    names = itertools.cycle([f"bench:ours:{number}" for number in range(_NAMES)])

    def ours() -> None:
        lease = client.acquire(next(names))
        _ = lease.fencing_token
        lease.release()

    replies = floor.once()
    if any(reply != b"*1\r\n:1\r\n" for reply in replies):
        raise RuntimeError(f"the ready-made release released nothing: {replies}")
    count = options.count(1_000, 100)
    sides = {"ours": lambda: mean_seconds(ours, count), "floor": lambda: mean_seconds(floor.once, count)}
    found = interleaved(sides, options.rounds)
    client.close()
    floor.close()
    return Row(
        f"acquire + release, {len(nodes)} nodes, guard and fence",
        found["ours"].median / found["floor"].median,
        target=at_most(1.5),
        ours=found["ours"].shown("us", 1e6),
        other="floor " + found["floor"].shown("us", 1e6),
        note=FLOOR,
    )


def _in_server(nodes: LocalNodes, options: Options) -> Iterator[Row]:
    url, count = nodes.urls[0], options.count(2_000, 300)
    acquires, releases = map(b"".join, zip(*ready_made([url], count), strict=True))
    names = [f"bench:set:{number}" for number in range(count)]
    sets = b"".join(pack(("SET", name, "0" * 32, "NX", "PX", 10_000)) for name in names)
    deletes = pack(("DEL", *names))
    connection = socket.create_connection(("127.0.0.1", nodes[0].port))
    reader = connection.makefile("rb")

    def script() -> None:
        connection.sendall(acquires)
        for _ in range(count * 6):  # *4, three numbers, and a text of two lines
            reader.readline()

    def bare() -> None:
        connection.sendall(sets)
        for _ in range(count):
            reader.readline()

    def undo() -> None:
        connection.sendall(releases + deletes)
        for _ in range(count * 2 + 1):
            reader.readline()

    server = {"evalsha": Samples(), "set": Samples()}

    def timed(command: str) -> float:
        reset_statistics([url])
        seconds = mean_seconds(script if command == "evalsha" else bare, 1) / count
        server[command].append(microseconds_per_call(url, command))
        undo()
        return seconds * 1e6

    found = interleaved({"evalsha": lambda: timed("evalsha"), "set": lambda: timed("set")}, options.rounds)
    connection.close()
    for what, sides, note in (("in the server", server, SCRIPT), ("over the wire", found, WIRE)):
        ours, other = sides["evalsha"], sides["set"]
        measured = ours.median / other.median
        shown = {"ours": ours.shown("us"), "other": "SET NX PX " + other.shown("us")}
        yield Row(f"acquire script {what}", measured, note=note, **shown)
