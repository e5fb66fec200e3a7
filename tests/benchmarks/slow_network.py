"""A slow network: proxies in a process of their own that deliver each reply some milliseconds later.

Run as ``python -m tests.benchmarks.slow_network DELAY_MS PORT...``; it prints its own port for each node's and ends
with its standard input. Replies that are on their way together are delayed together: what is pipelined, or asked of
several nodes at once, waits once. One loop over `select` serves all connections, for its time-out is finer than the
milliseconds of `poll`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_HOST = "127.0.0.1"


@contextlib.contextmanager
def slow_network(ports: Sequence[int], delay_ms: float) -> Iterator[list[str]]:
    """Give the addresses under which the nodes at some ports can be reached with late replies."""
    command = [sys.executable, "-m", __name__, str(delay_ms), *map(str, ports)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield [f"redis://{_HOST}:{port}" for port in process.stdout.readline().split()]
    finally:
        process.communicate(timeout=10.0)


@dataclass(eq=False)
class _Pipe:
    """One client's connection and the node's."""

    client: socket.socket
    node: socket.socket
    late: deque[tuple[float, bytes]] = field(default_factory=deque)

    def close(self) -> None:
        self.client.close()
        self.node.close()


class _Proxies:
    def __init__(self, delay: float, ports: Sequence[int]) -> None:
        self._delay = delay
        self._listeners = {socket.create_server((_HOST, 0)): port for port in ports}
        self._ends: dict[socket.socket, _Pipe] = {}

    @property
    def ports(self) -> list[int]:
        return [listener.getsockname()[1] for listener in self._listeners]

    def serve(self) -> None:
        """Carry bytes until standard input ends."""
        while True:
            pipes = set(self._ends.values())
            dues = [pipe.late[0][0] for pipe in pipes if pipe.late]
            pause = max(0.0, min(dues) - time.monotonic()) if dues else None
            readable, _, _ = select.select([sys.stdin, *self._listeners, *self._ends], [], [], pause)
            now = time.monotonic()
            for end in readable:
                if end is sys.stdin:
                    return
                if end in self._listeners:
                    self._accept(end)
                elif end in self._ends:
                    self._carry(end, self._ends[end], now)
            for pipe in pipes:
                while pipe.late and pipe.late[0][0] <= now:
                    self._send(pipe, pipe.client, pipe.late.popleft()[1])

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        pipe = _Pipe(client, socket.create_connection((_HOST, self._listeners[listener])))
        for end in (pipe.client, pipe.node):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends[end] = pipe

    def _carry(self, end: socket.socket, pipe: _Pipe, now: float) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(65_536)
        if not data:
            self._drop(pipe)
        elif end is pipe.client:
            self._send(pipe, pipe.node, data)
        else:
            pipe.late.append((now + self._delay, data))

    def _send(self, pipe: _Pipe, end: socket.socket, data: bytes) -> None:
        try:
            end.sendall(data)
        except OSError:
            self._drop(pipe)

    def _drop(self, pipe: _Pipe) -> None:
        self._ends.pop(pipe.client, None)
        self._ends.pop(pipe.node, None)
        pipe.late.clear()
        pipe.close()


if __name__ == "__main__":
    proxies = _Proxies(float(sys.argv[1]) / 1000, [int(port) for port in sys.argv[2:]])
    print(*proxies.ports, flush=True)
    proxies.serve()
