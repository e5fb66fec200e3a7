"""Virtual connections: bytes travel with delays, in order, and may never arrive; a late one still does.

The shipping `Link` packs commands and reads replies as over a real socket. A connection keeps the order of its bytes;
what was sent before it was closed is on its way and arrives, as from a kernel's buffer. Lost packets are a connection
that falls silent in one or both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hiredis

from redlock.events import Event
from redlock.link import Link, _check_server
from redlock.member import Member
from redlock.members import Members
from redlock.node import Node, NodeFaultError
from redlock.resp import new_reader
from tests.simulation.lua_runtime import ErrorReply
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sim_nodes import VirtualNode, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Network", "VirtualHost", "VirtualMembers", "Weather"]


@dataclass(frozen=True)
class Weather:
    """How the network is in one schedule.

    Args:
        delay: Mean seconds that bytes travel.
        tail: Share of bytes that take up to `longest` more.
        longest: Seconds.
        loss: Share of bytes after which a connection is silent.
        repeats: Share of commands that arrive once more later, as from a proxy that tries again.
    """

    delay: float = 0.001
    tail: float = 0.0
    longest: float = 20.0
    loss: float = 0.0
    repeats: float = 0.0


class VirtualHost:
    """A virtual node with its machine: it can be down, frozen, or out of reach."""

    def __init__(self, index: int, node: VirtualNode) -> None:
        self.index = index
        self.node = node
        self.is_up = True
        self.is_silent = False
        """Whether a machine that is down says nothing, instead of refusing connections."""
        self.frozen_until = -1.0
        self.forgot_without_restart = False
        self.sockets: list[VirtualSocket] = []


class Network:
    """Everything between processes and nodes."""

    def __init__(self, world: Scheduler, hosts: Sequence[VirtualHost], weather: Weather) -> None:
        self.world = world
        self.hosts = hosts
        self.weather = weather
        self.cut_until: dict[tuple[str, int], float] = {}

    def delay(self) -> float:
        """Return how long something travels."""
        rng, weather = self.world.rng, self.weather
        seconds = rng.expovariate(1.0) * weather.delay
        if weather.tail and rng.random() < weather.tail:
            self.world.seen["slow bytes"] += 1
            seconds += rng.random() * weather.longest
        return seconds

    def arrival(self, process: str, host: int, not_before: float) -> float:
        """Return when bytes arrive that leave now: not before those in front of them, nor through a partition."""
        time = self.world.now + self.delay()
        cut = self.cut_until.get((process, host), -1.0)
        if cut > self.world.now:
            self.world.seen["held back by a partition"] += 1
            time = max(time, cut + self.delay())
        return max(time, not_before)


class VirtualSocket:
    """The client's end of a connection, and the node's."""

    def __init__(self, network: Network, process: Process, host: VirtualHost) -> None:
        self.network = network
        self.process = process
        self.host = host
        self.run_id = host.node.run_id
        self.inbox = bytearray()
        self._pending = bytearray()
        self.is_closed = False
        self.is_reset = False
        self._requests_lost = self._replies_lost = False
        self._reaches_at = self._returns_at = 0.0
        self._reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
        host.sockets.append(self)

    # -- the client's end, as `Link` uses it

    def send(self, data: bytes) -> int:
        if self.is_reset:
            raise ConnectionResetError("connection reset")
        network = self.network
        self._reaches_at = network.arrival(self.process.name, self.host.index, self._reaches_at)
        if network.weather.loss and network.world.rng.random() < network.weather.loss:
            self._replies_lost = True
            self._requests_lost = self._requests_lost or network.world.rng.random() < 0.5
        if self._requests_lost:
            network.world.seen["lost request"] += 1
        else:
            network.world.at(self._reaches_at, self._arrive, bytes(data))
        return len(data)

    def recv_into(self, room: memoryview) -> int:
        if self.inbox:
            size = min(len(room), len(self.inbox))
            room[:size] = self.inbox[:size]
            del self.inbox[:size]
            return size
        if self.is_reset:
            raise ConnectionResetError("connection reset")
        raise BlockingIOError

    def disconnect(self) -> None:
        self.is_closed = True

    close = disconnect

    # -- the node's end

    @property
    def _is_dead(self) -> bool:
        """Whether the node is not, or no longer, the one that this connection leads to."""
        return not self.host.is_up or self.host.node.run_id != self.run_id

    def _arrive(self, data: bytes) -> None:
        world, host = self.network.world, self.host
        if self._is_dead:
            if not host.is_silent or host.is_up:
                self.reset_later()
            return
        self._pending += data
        if host.frozen_until > world.now:
            world.seen["waited for a frozen node"] += 1
            world.at(host.frozen_until, self._arrive, b"")
            return
        self._reader.feed(bytes(self._pending))
        self._pending.clear()
        replies = []
        while not self._is_dead and (command := self._reader.gets()) is not False:
            if self.is_closed:
                world.seen["late request"] += 1
            reply = host.node.execute(command)
            if type(reply) is ErrorReply:
                world.seen[f"error reply: {reply.text.split()[0]}"] += 1
            replies.append(encoded(reply))
            repeats = self.network.weather.repeats
            if repeats and world.rng.random() < repeats:
                world.at(world.now + world.rng.random() * self.network.weather.longest, self._repeat, command)
        if replies and not self.is_closed:
            if self._replies_lost:
                world.seen["lost reply"] += 1
                return
            self._returns_at = self.network.arrival(self.process.name, host.index, self._returns_at)
            world.at(self._returns_at, self._return, b"".join(replies))

    def _repeat(self, command: list[str]) -> None:
        if self.host.is_up and self.host.frozen_until <= self.network.world.now:
            self.network.world.seen["repeated request"] += 1
            self.host.node.execute(command)

    def _return(self, data: bytes) -> None:
        if not self.is_closed:
            self.inbox += data
            self.process.hears(self.host.index)

    def reset_later(self) -> None:
        """Let the client learn that the connection is gone."""
        self.network.world.at(self.network.world.now + self.network.delay(), self._reset)

    def _reset(self) -> None:
        if not self.is_closed and not self.is_reset:
            self.is_reset = True
            self.process.hears(self.host.index)


class VirtualLink(Link):
    """The shipping link over a virtual socket."""

    def adopt_socket(self, sock: VirtualSocket) -> None:
        self._connection = self._socket = sock  # type: ignore[assignment]
        self._reader = new_reader()
        self.run_id = sock.run_id
        self.fileno = sock.host.index

    def _hand_out(self, reply: Any, now: float) -> None:
        if self._slots and not self._slots[0].is_wanted:
            self.sees("reply that nobody waits for")
        super()._hand_out(reply, now)

    sees: Callable[[str], None]


class VirtualMembers(Members):
    """The shipping members of one process; connections are opened in virtual time."""

    def __init__(
        self,
        process: Process,
        network: Network,
        addresses: Sequence[Node],
        timeout: float,
        observer: Callable[[Event], None],
    ) -> None:
        super().__init__(addresses, timeout, process.clock, observer)
        self.process = process
        self.timeout = timeout
        self._network = network

    def watch(self, member: Member) -> None:
        pass

    def unwatch(self, member: Member) -> None:
        pass

    def on_opened(self) -> None:
        self.process.wake()

    def vanish(self) -> None:
        """Close all sockets without a word: the process was killed."""
        for member in self.all:
            if member.link.is_open:
                member.link._socket.close()

    def begin(self, opening: Callable[[], None], *, may_wait: bool) -> None:
        opening()

    def _open(self, member: Member) -> None:
        network, world = self._network, self._network.world
        host = network.hosts[self.all.index(member)]
        give_up = world.now + self.timeout
        arrival = network.arrival(self.process.name, host.index, 0.0)
        if arrival >= give_up or (not host.is_up and host.is_silent) or host.frozen_until >= give_up:
            world.at(give_up, self._opened, member, NodeFaultError("timed out connecting"))
            return
        world.at(max(arrival, host.frozen_until), self._reach, member, host, give_up)

    def _reach(self, member: Member, host: VirtualHost, give_up: float) -> None:
        network, world = self._network, self._network.world
        back = network.arrival(self.process.name, host.index, 0.0) + 2 * network.weather.delay
        if not host.is_up:
            world.at(min(back, give_up), self._opened, member, NodeFaultError("connection refused"))
            return
        if back >= give_up:
            world.at(give_up, self._opened, member, NodeFaultError("timed out connecting"))
            return
        try:
            _check_server(host.node.call_info(), ())
        except NodeFaultError as fault:
            world.seen["refused a replica"] += 1
            world.at(back, self._opened, member, fault)
            return
        link = VirtualLink(member.node, self.process.clock, member.index)
        link.sees = self._see
        link.adopt_socket(VirtualSocket(network, self.process, host))
        world.at(back, self._opened, member, link)

    def _see(self, what: str) -> None:
        self._network.world.seen[what] += 1

    def _opened(self, member: Member, outcome: Link | NodeFaultError) -> None:
        if self.process.is_alive:
            member.opened = outcome
            self.on_opened()
        elif isinstance(outcome, Link):
            outcome.abandon()
