"""One FIFO connection to one node: bytes out, replies in, and nothing left behind when it ends.

A link never blocks except in `open`, which runs on a thread of its own. What was sent and not answered stands in a
queue; replies are matched to it in order, also those that nobody waits for any more, so that a late reply can never be
taken for the next one. When a link is given up, the undo of every unanswered command that has one is written behind it
on the same connection: only there it is certain to come second.
"""

from __future__ import annotations

import reprlib
import socket
import ssl
from collections import deque
from collections.abc import Collection
from typing import Any

from redis.connection import AbstractConnection

from redlock.facts import Facts, unfit
from redlock.node import Node, NodeFaultError
from redlock.plan import Clock, Command
from redlock.resp import NO_REPLY, PENDING, ReplyError, new_reader
from redlock.slot import Slot
from redlock.wire import closing_fault, disconnect, is_answer, packed, socket_of, talk

__all__ = ["Link"]

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_MOST_READ = 65_536
"""Bytes that are read at once."""
_MOST_UNANSWERED = 10_000
"""Slots of a link before it is given up: a bound for a node that neither answers nor fails."""


class Link:
    """The connection to one node.

    Args:
        node: Where it leads.
        clock: Seconds, to know how long replies take.
        index: The node's place among the votes.
    """

    def __init__(self, node: Node, clock: Clock, index: int) -> None:
        self.node = node
        self._index = index
        self._clock = clock
        self._connection: AbstractConnection | None = None
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._slots: deque[Slot] = deque()
        self._unsent = bytearray()
        self._room = memoryview(bytearray(_MOST_READ))  # kept: a new one for each read is what reading would cost most
        self._sent = self._answered = 0
        self._texts: dict[str, int] = {}
        self.run_id: str | None = None
        self._is_tls = False
        self.fileno = -1
        self.usual = 0.0
        """How long replies took lately, in seconds: a moving average."""

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._socket is not None

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for room in the socket's buffer."""
        return bool(self._unsent)

    @property
    def deadline(self) -> float | None:
        """When the oldest unanswered command is overdue; None if there is none."""
        return self._slots[0].deadline if self._slots else None

    def open(self, timeout: float) -> None:
        """Connect, and make sure that a server answers which may be used; blocks for about ``timeout`` a step.

        Raises:
            NodeFaultError: It cannot be used now; nothing stays open.
        """
        connection = self.node.connect(timeout)
        try:
            self.run_id = _check_server(talk(connection, "INFO"), self.node.tolerated)
            sock = socket_of(connection)
            sock.setblocking(False)
        except BaseException:
            disconnect(connection)
            raise
        self._connection, self._socket, self._reader, self.fileno = connection, sock, new_reader(), sock.fileno()
        self._is_tls = isinstance(sock, ssl.SSLSocket)

    def send(self, slot: Slot) -> None:
        """Queue a command; `flush` writes it. A script's first call on a link brings its text, later ones its hash."""
        sha = slot.command.script.sha
        self._sent += 1
        by_text = sha not in self._texts
        if by_text:
            self._texts[sha] = self._sent
        self._slots.append(slot)
        self._unsent += packed(slot.command, by_text=True) if by_text else slot.data

    def flush(self) -> None:
        """Write what the socket takes.

        Raises:
            NodeFaultError: The connection is broken or too much is unanswered; call `close`.
        """
        sock = self._socket
        if sock is None or not self._unsent:
            return
        if len(self._slots) > _MOST_UNANSWERED:
            raise NodeFaultError("too many commands without a reply")
        try:
            sent = sock.send(self._unsent)
        except _WOULD_BLOCK:
            return
        except OSError as error:
            raise NodeFaultError(f"{type(error).__name__}: {error}") from error
        del self._unsent[:sent]

    def receive(self) -> None:
        """Read what is there and hand the replies out, in order.

        Raises:
            NodeFaultError: The connection is broken or leads to no usable node; call `close`.
        """
        sock = self._socket
        if sock is None:
            return
        try:
            size = sock.recv_into(self._room)
            if not size:
                raise NodeFaultError("the server closed the connection")
            feed = self._reader.feed
            feed(self._room[:size])
            while self._is_tls and sock.pending():  # type: ignore[attr-defined]
                feed(self._room[: sock.recv_into(self._room)])
            now = self._clock()
            replies, fault = self._read()
            for reply in replies:
                self._hand_out(reply, now)
            if fault is not None:
                raise fault
            if self._unsent:
                self.flush()  # what has to be sent again
        except _WOULD_BLOCK:
            return
        except OSError as error:
            raise NodeFaultError(f"{type(error).__name__}: {error}") from error

    def _read(self) -> tuple[list[Any], NodeFaultError | None]:
        """Return the replies that are complete, and what is wrong with the bytes behind them."""
        replies, gets = [], self._reader.gets
        try:
            while (reply := gets()) is not PENDING:
                replies.append(reply)
        except NO_REPLY as error:
            return replies, NodeFaultError(f"not a Redis server ({error})", permanent=True)
        return replies, None

    def _hand_out(self, reply: Any, now: float) -> None:
        is_error = isinstance(reply, ReplyError)
        if not self._slots:
            raise NodeFaultError("a reply that nobody asked for")
        if not is_error and not is_answer(reply):  # a push, say: all later replies would miss their questions
            raise NodeFaultError(f"unexpected reply {reprlib.repr(reply)}")
        slot = self._slots.popleft()
        self._answered += 1
        asker = slot.asker
        if asker is not None and asker.is_open:  # others may have lain in the socket until somebody read them
            self.usual += (now - slot.sent_at - self.usual) / 8
        if is_error:
            if str(reply).startswith("NOSCRIPT"):
                self._send_again(slot)
                return
            if fault := closing_fault(reply):
                slot.answer(self._index, fault, now)
                raise fault
        if asker is not None:
            asker.answered(self._index, reply, now)

    def _send_again(self, slot: Slot) -> None:
        """Send a command again whose script the server does not know (any more); its text once for all of them."""
        sha = slot.command.script.sha
        if self._texts.get(sha, 0) <= self._answered:  # sent before this one, or with it
            self._texts.pop(sha, None)
        # What has an undo may be meant no more; anything else must still happen.
        if slot.is_wanted or slot.command.undo is None:
            self.send(slot)

    def close(self, fault: NodeFaultError) -> list[Command]:
        """Take back what was not answered, as far as the socket takes it, and close; every open slot gets the fault.

        Returns:
            What is still owed to the node: undos that could not be sent, and unanswered commands worth repeating.
        """
        slots, self._slots = self._slots, deque()
        connection, self._connection = self._connection, None
        sock, self._socket = self._socket, None
        undos = [slot.command.undo for slot in slots if slot.command.undo]
        owed = [slot.command for slot in slots if slot.command.worth]
        if sock is not None and connection is not None:
            # Behind a command that was cut short an undo would be read as part of it: all or nothing.
            data = bytes(self._unsent) + b"".join(map(packed, undos))
            try:
                if not fault.is_overdue or (data and sock.send(data) < len(data)):
                    owed += undos
            except OSError:
                owed += undos
            disconnect(connection)
        self._unsent.clear()
        now = self._clock()
        for slot in slots:
            slot.answer(self._index, fault, now)
        return owed

    def abandon(self) -> None:
        """Forget the connection without a word to the server: after a fork it is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._connection = None
        self._socket = None
        self._slots, self._unsent = deque(), bytearray()  # new ones: the parent's thread may have been at the old ones


def _check_server(info: Any, tolerated: Collection[str]) -> str | None:
    """Return a server's run id; None where INFO is not allowed.

    Raises:
        NodeFaultError: The server cannot be used now (loading, not authenticated, ...) or is unfit to be a node.
    """
    if isinstance(info, ReplyError):
        if str(info).startswith("NOPERM") or "unknown command" in str(info).lower():
            return None
        raise closing_fault(info) or NodeFaultError(str(info))
    if not isinstance(info, str):
        raise NodeFaultError(f"not a Redis server (INFO answered {str(info)[:40]!r})", permanent=True)
    facts = Facts.parse(info)
    if finding := unfit(facts, tolerated):
        # a replica may be promoted any time; the rest stays until somebody changes a setting
        raise NodeFaultError(f"{finding.text}; {finding.remedy}", permanent=finding.rule != "replica")
    return facts.run_id
