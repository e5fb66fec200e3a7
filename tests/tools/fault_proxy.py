"""A TCP proxy in front of a node that fails on command; it runs in a thread of its own and is steered synchronously.

    with FaultProxy("127.0.0.1", node_port) as proxy:
        client = redis.Redis.from_url(proxy.url)
        proxy.set("drop_replies")           # the node executes, the client never hears
        ...
        assert proxy.observed["drop_replies"] > 0

Modes, with the arguments of `set`:
    pass                        forward everything
    refuse                      the port stays reserved but nobody listens: connections are refused, open ones reset
    reset                       connections are accepted and reset at once, open ones too
    hang                        connections are accepted and nothing is ever forwarded, in either direction
    drop_requests               requests are swallowed: the node never sees them
    drop_replies                requests are forwarded, replies swallowed
    delay(request_s, reply_s)   each direction takes that much longer; chunks wait side by side, not in turn
    inject(bytes)               every request is answered with these bytes, the node never sees it
    garbage                     every bit pattern of the replies is changed
    cut(n)                      the connection is closed after n more bytes of replies

A connection accepted while hanging stays mute for good; all others follow the mode of the moment. `observed` counts
what really happened, by mode: chunks of bytes, or connections for refuse, reset, hang and "killed". The kernel refuses
connections unseen, so refuse counts the times the port was closed and the open connections that were reset by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")

CHUNK = 65_536
STEERING_TIMEOUT = 5.0  # seconds; the loop is only ever busy copying bytes
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: close sends RST
END = None  # closes a queue

# Mode -> types of the arguments that `set` takes for it.
MODES: dict[str, tuple[type, ...]] = {
    "pass": (),
    "refuse": (),
    "reset": (),
    "hang": (),
    "drop_requests": (),
    "drop_replies": (),
    "delay": (float, float),
    "inject": (bytes,),
    "garbage": (),
    "cut": (int,),
}


@dataclass(frozen=True, eq=False)
class Mode:
    """How the proxy behaves from one `set` to the next; compared by identity, so that setting it again starts anew."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in MODES:
            raise ValueError(f"no such mode: {self.name!r}; known are {', '.join(MODES)}")
        kinds = MODES[self.name]
        allowed = [(int, float) if kind is float else kind for kind in kinds]
        if len(kinds) != len(self.arguments) or not all(map(isinstance, self.arguments, allowed)):
            wanted = ", ".join(kind.__name__ for kind in kinds) or "nothing"
            raise ValueError(f"mode {self.name!r} takes {wanted}, not {self.arguments!r}")


@dataclass(eq=False)
class Link:
    """One client's connection; queues hold (due time, bytes) in the order of arrival, END closes them."""

    replies: asyncio.Queue[tuple[float, bytes] | None] = field(default_factory=asyncio.Queue)
    requests: asyncio.Queue[tuple[float, bytes] | None] = field(default_factory=asyncio.Queue)
    is_mute: bool = False
    cutting: Mode | None = None
    left_to_cut: int = 0


class FaultProxy:
    """See the module's docstring.

    Args:
        host: Where the node is.
        port: The node's port; connections are opened when a client connects, so the node may be down.
    """

    def __init__(self, host: str, port: int) -> None:
        self.observed: Counter[str] = Counter()
        self._target = (host, port)
        self._mode = Mode("pass")
        self._socket = _bound_socket(0)
        self.port: int = self._socket.getsockname()[1]
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"fault-proxy-{self.port}", daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def url(self) -> str:
        """Return the address that clients take instead of the node's."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def mode(self) -> str:
        """Return the name of the present mode."""
        return self._mode.name

    def set(self, mode: str, *arguments: float | bytes, kill_connections: bool = False) -> None:
        """Switch the mode; in force for all connections when this returns.

        Args:
            mode: One of the modes in the module's docstring.
            arguments: What that mode takes.
            kill_connections: Also reset the connections that are open now, so that the next request needs a new one.
        """
        self._call(self._switch(Mode(mode, arguments), kill_connections=kill_connections))

    def close(self) -> None:
        """Reset all connections, free the port and end the thread; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STEERING_TIMEOUT)
        self._loop.close()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STEERING_TIMEOUT)

    async def _switch(self, mode: Mode, *, kill_connections: bool) -> None:
        before, self._mode = self._mode.name, mode
        if mode.name == "refuse" and before != "refuse":
            self.observed["refuse"] += 1
            await self._stop_listening()
            self._socket = _bound_socket(self.port)
        elif mode.name != "refuse" and before == "refuse":
            await self._listen()
        if mode.name in ("refuse", "reset"):
            self.observed[mode.name] += await self._reset_links()
        elif kill_connections:
            self.observed["killed"] += await self._reset_links()

    async def _shut_down(self) -> None:
        await self._stop_listening()
        await self._reset_links()

    async def _listen(self) -> None:
        self._socket.listen(128)
        self._loop.add_reader(self._socket, self._accept)

    async def _stop_listening(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def _reset_links(self) -> int:
        """Reset every open connection and return how many there were."""
        links = list(self._links)
        for task in links:
            task.cancel()
        if links:
            await asyncio.wait(links)
        return len(links)

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:  # the client was quicker, and is gone
            return
        client.setblocking(False)
        if self._mode.name == "reset":
            self.observed["reset"] += 1
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.close()
            return
        task = self._loop.create_task(self._serve(client))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        task.add_done_callback(lambda _: client.close())  # also where it was cancelled before it began

    async def _serve(self, client: socket.socket) -> None:
        """Carry one connection from its first byte to its end; cancelled, it is reset."""
        link = Link(is_mute=self._mode.name == "hang")
        client_reader, client_writer = await asyncio.open_connection(sock=client)
        writers = [client_writer]
        jobs = []
        try:
            if link.is_mute:
                self.observed["hang"] += 1
            else:
                node_reader, node_writer = await asyncio.open_connection(*self._target)
                writers.append(node_writer)
                jobs += [_send(link.requests, node_writer), self._read_replies(link, node_reader)]
            jobs += [self._read_requests(link, client_reader)]
            helpers = [self._loop.create_task(job) for job in jobs]
            try:
                await _send(link.replies, client_writer)
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
        except BaseException as error:
            _reset(client_writer)
            if not isinstance(error, (OSError, asyncio.CancelledError)):
                raise
        finally:
            await _close(writers)

    async def _read_requests(self, link: Link, client: asyncio.StreamReader) -> None:
        while data := await _read(client):
            mode = self._mode
            delay = mode.arguments[0] if mode.name == "delay" else 0.0
            if link.is_mute or mode.name == "hang":
                self.observed["hang"] += 1
            elif mode.name == "drop_requests":
                self.observed["drop_requests"] += 1
            elif mode.name == "inject":
                self.observed["inject"] += 1
                link.replies.put_nowait((self._loop.time(), mode.arguments[0]))
            else:
                self.observed["delay"] += delay > 0
                link.requests.put_nowait((self._loop.time() + delay, data))
        (link.replies if link.is_mute else link.requests).put_nowait(END)

    async def _read_replies(self, link: Link, node: asyncio.StreamReader) -> None:
        while data := await _read(node):
            mode = self._mode
            delay = mode.arguments[1] if mode.name == "delay" else 0.0
            if mode.name in ("hang", "drop_replies"):
                self.observed[mode.name] += 1
                continue
            if mode.name == "cut":
                data = self._cut(link, mode, data)
            elif mode.name == "garbage":
                self.observed["garbage"] += 1
                data = bytes(byte ^ 0x55 for byte in data)
            self.observed["delay"] += delay > 0
            link.replies.put_nowait((self._loop.time() + delay, data))
            if mode.name == "cut" and link.left_to_cut == 0:
                self.observed["cut"] += 1
                break
        link.replies.put_nowait(END)

    @staticmethod
    def _cut(link: Link, mode: Mode, data: bytes) -> bytes:
        """Return the part of a reply that still goes through."""
        if link.cutting is not mode:
            link.cutting, link.left_to_cut = mode, mode.arguments[0]
        data = data[: link.left_to_cut]
        link.left_to_cut -= len(data)
        return data


def _bound_socket(port: int) -> socket.socket:
    """Return a socket that holds the port; until it listens, the kernel refuses connections."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setblocking(False)
    held.bind(("127.0.0.1", port))
    return held


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the next bytes, or none at the end, however the connection ended."""
    try:
        return await reader.read(CHUNK)
    except OSError:
        return b""


async def _send(queue: asyncio.Queue[tuple[float, bytes] | None], writer: asyncio.StreamWriter) -> None:
    """Write what is in the queue, each chunk when it is due, then end this direction."""
    loop = asyncio.get_running_loop()
    while (item := await queue.get()) is not END:
        due, data = item
        await asyncio.sleep(max(0.0, due - loop.time()))
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of an orderly end."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


async def _close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
