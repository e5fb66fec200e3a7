"""Commands to bytes, replies to votes, and one blocking question for when a connection is opened or inspected."""

from __future__ import annotations

import reprlib
import socket
import time
from typing import Any

from redis.connection import AbstractConnection

from redlock.node import TLS_HINT, NodeFaultError, is_permanent
from redlock.plan import Command
from redlock.quorum import Vote, VoteKind
from redlock.resp import NO_REPLY, PENDING, ReplyError, new_reader, pack

__all__ = ["closing_fault", "disconnect", "is_answer", "packed", "socket_of", "talk", "vote"]

_KINDS = {1: VoteKind.GRANTED, 0: VoteKind.REFUSED, -1: VoteKind.UNKNOWN}
_CLOSING = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "CLUSTERDOWN", "MOVED", "ASK", "UNBLOCKED")
_REFUSAL = (str, int, str, str, int)
"""Fields of a refusal by the guard: reason, time left, marker, identity, time."""


def packed(command: Command, *, by_text: bool = False) -> bytes:
    """Return a command as bytes, by the script's hash unless its text has to travel."""
    script = command.script
    call = ("EVAL", script.text) if by_text or script.by_text else ("EVALSHA", script.sha)
    return pack((*call, len(command.keys), *command.keys, *command.args))


def talk(connection: AbstractConnection, *command: str | int) -> Any:
    """Send one command and wait for its reply, at most for the connection's time-out; an error reply is returned.

    Raises:
        NodeFaultError: The connection failed, or what answers is no Redis server.
    """
    sock, reader = socket_of(connection), new_reader()
    deadline = time.monotonic() + (sock.gettimeout() or 0.0)
    try:
        sock.sendall(pack(command))
        while (reply := reader.gets()) is PENDING:
            if time.monotonic() > deadline:
                raise NodeFaultError("no complete reply in time")
            data = sock.recv(65_536)
            if not data:
                raise NodeFaultError(f"the server closed the connection{TLS_HINT}")
            reader.feed(data)
    except NO_REPLY as error:
        raise NodeFaultError(f"not a Redis server ({error})", permanent=True) from error
    except ConnectionResetError as error:
        raise NodeFaultError(f"the server reset the connection{TLS_HINT}") from error
    except OSError as error:
        raise NodeFaultError(f"{type(error).__name__}: {error}") from error
    return reply


def socket_of(connection: AbstractConnection) -> socket.socket:
    """Return the connected socket; redis-py has no public name for it, and all supported releases have this one."""
    found: Any = connection._sock  # noqa: SLF001
    if not isinstance(found, socket.socket):
        raise NodeFaultError("the connection was closed at once")
    return found


def disconnect(connection: AbstractConnection) -> None:
    """Close a connection."""
    connection.disconnect()  # type: ignore[no-untyped-call]


def closing_fault(reply: ReplyError) -> NodeFaultError | None:
    """Return the fault if an error reply means that this connection leads to no usable node."""
    text = str(reply)
    return NodeFaultError(text, permanent=is_permanent(text)) if text.startswith(_CLOSING) else None


def is_answer(reply: Any) -> bool:
    """Return whether a reply has the form in which our scripts answer: a list that begins with a whole number."""
    return type(reply) is list and bool(reply) and type(reply[0]) is int


def vote(name: str, reply: Any, grants: tuple[type, ...] | None = None) -> Vote:
    """Return the vote that a script's reply means; what is not of our scripts' form is unknown.

    Args:
        name: The node's name.
        reply: As it was read.
        grants: Types of the fields when the script grants.
    """
    kind = _KINDS.get(reply[0]) if is_answer(reply) else None
    if kind is VoteKind.GRANTED and (grants is None or tuple(map(type, reply)) == grants):
        return Vote(name, kind, tuple(reply[1:]))
    if kind is VoteKind.REFUSED and not any(type(field) is list and not _is_refusal(field) for field in reply):
        return Vote(name, kind, _frozen(reply[1:]))
    if kind is VoteKind.UNKNOWN and _is_refusal(reply[1:]):
        rest = _frozen(reply[1:])
        return Vote(name, kind, rest, _guard_cause(rest))
    if isinstance(reply, ReplyError):
        return Vote(name, VoteKind.UNKNOWN, (), str(reply), is_permanent(str(reply)))
    return Vote(name, VoteKind.UNKNOWN, (), f"unexpected reply {reprlib.repr(reply)}")


def _is_refusal(fields: list[Any]) -> bool:
    return tuple(map(type, fields[:5])) == _REFUSAL


def _frozen(fields: list[Any]) -> tuple[Any, ...]:
    """Return fields as a tuple; one of them may be a refusal, which is a list."""
    return tuple([tuple(field) if type(field) is list else field for field in fields])


def _guard_cause(rest: tuple[Any, ...]) -> str:
    reason, left_ms = rest[:2]
    return f"may not vote ({reason})" + (f" for {left_ms / 1000:g} s" if left_ms else "")
