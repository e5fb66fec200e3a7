"""The connection to one node: what comes out of it is the reply to what went in, or a fault."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from redlock.link import Link
from redlock.node import NodeFaultError, parse_nodes
from redlock.plan import Command
from redlock.resp import Reader, new_reader
from redlock.scripts import PING
from redlock.slot import Slot
from redlock.wire import packed, talk

COMMAND = Command(PING, ("k",), ())
ASKED = packed(COMMAND, by_text=True)


class Asked:
    """Who sent a command: keeps what is said to it."""

    is_open = True

    def __init__(self) -> None:
        self.said: list[Any] = []

    def answered(self, _index: int, reply: Any, _now: float) -> None:
        self.said.append(reply)


class Peer:
    """An open link, and the server's end of it."""

    def __init__(self, new: Callable[[], Any]) -> None:
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        self.link = Link(parse_nodes(["redis://a"])[0], lambda: 0.0, 0)
        self.link._socket, self.link._reader = ours, new()
        self.link._connection = SimpleNamespace(disconnect=ours.close)  # type: ignore[assignment]

    def ask(self, count: int) -> list[Asked]:
        """Send commands and return who sent them."""
        askers = [Asked() for _ in range(count)]
        for asker in askers:
            self.link.send(Slot(COMMAND, ASKED, asker, 1.0))
        self.link.flush()
        return askers

    def receive(self, data: bytes) -> None:
        """Let the link read what the server sends."""
        self.socket.sendall(data)
        self.link.receive()


@pytest.fixture(params=[Reader, new_reader], ids=["ours", "fastest"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    peer = Peer(request.param)
    yield peer
    peer.link.close(NodeFaultError("end"))
    peer.socket.close()


def test_replies_meet_their_commands_in_order(peer: Peer) -> None:
    first, second = peer.ask(2)
    peer.receive(b"*1\r\n:1\r\n*2\r\n:0\r\n")
    peer.receive(b"$4\r\nheld\r\n")
    assert (first.said, second.said) == ([[1]], [[0, "held"]])


ODD = {
    "push": b">2\r\n+invalidate\r\n*1\r\n+x\r\n",
    "attribute": b"|1\r\n+ttl\r\n:9\r\n",
    "set": b"~1\r\n+x\r\n",
    "map": b"%1\r\n+x\r\n:1\r\n",
    "null": b"_\r\n",
    "text": b"+OK\r\n",
    "number": b":1\r\n",
    "empty": b"*0\r\n",
    "texts": b"*1\r\n+1\r\n",
    "list for a key": b"%1\r\n*0\r\n:1\r\n",
    "endless list": b"*4294967295\r\n",
    "garbage": b"HTTP/1.1 400\r\n",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_nobody_asked_for_ends_the_link_and_moves_no_reply(peer: Peer, odd: bytes) -> None:
    """Each later reply would be taken for the one to the command before: a refusal would become a grant."""
    first, second = peer.ask(2)
    with pytest.raises(NodeFaultError) as caught:
        peer.receive(odd + b"*1\r\n:1\r\n")
    peer.link.close(caught.value)
    assert first.said == second.said == [caught.value]


def test_two_replies_to_one_command_end_the_link(peer: Peer) -> None:
    (asked,) = peer.ask(1)
    with pytest.raises(NodeFaultError, match="nobody asked for"):
        peer.receive(b"*1\r\n:1\r\n*1\r\n:0\r\n")
    assert asked.said == [[1]]


@pytest.mark.parametrize("odd", [ODD["list for a key"], ODD["endless list"], ODD["garbage"]], ids=repr)
def test_question_while_opening_is_faulted_by_what_is_no_reply(odd: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(1.0)
    with ours, theirs:
        theirs.sendall(odd)
        with pytest.raises(NodeFaultError) as caught:
            talk(SimpleNamespace(_sock=ours), "INFO")  # type: ignore[arg-type]
        assert caught.value.permanent
