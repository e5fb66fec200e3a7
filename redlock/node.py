"""One node: its address without secrets, how to connect to it, and what its replies mean as votes.

redis-py's exceptions end here; everything above knows votes and faults.
"""

from __future__ import annotations

import hashlib
import inspect
import socket
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from redlock.errors import SettingsError
from redlock.facts import RULES
from redlock.plan import Command
from redlock.quorum import Vote, VoteKind
from redlock.resp import PENDING, ProtocolError, ReplyError, new_reader, pack

__all__ = ["Node", "NodeFaultError", "NodeSource", "packed", "parse_nodes", "vote"]

NodeSource: TypeAlias = "str | redis.Redis"
"""A redis://, rediss:// or unix:// URL; or a redis-py client, of which only the configuration is used."""

_KINDS = {1: VoteKind.GRANTED, 0: VoteKind.REFUSED, -1: VoteKind.UNKNOWN}
_CLOSING = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "CLUSTERDOWN", "MOVED", "ASK", "UNBLOCKED")
_PERMANENT = (
    "WRONGPASS",
    "NOAUTH",
    "MOVED",
    "CLUSTERDOWN",
    "invalid username-password",
    "invalid password",
    "DB index",
)
# Options of a client's pool that would retry, probe or talk on the connection behind our back.
_NOT_OURS = ("maint_notifications_config", "maint_notifications_pool_handler", "event_dispatcher", "himport_registry")


class NodeFaultError(Exception):
    """The node cannot be used now.

    Attributes:
        permanent: Whether trying again cannot help until somebody changes a setting.
        is_overdue: Whether the connection stands, and only the reply did not come in time.
    """

    def __init__(self, cause: str, *, permanent: bool = False, is_overdue: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_overdue = is_overdue
        self.permanent = permanent


class Node:
    """Where one node is and how to open a connection to it.

    Args:
        source: URL or redis-py client.
        tolerated: Rules of `facts.RULES` that are not held against the server.
    """

    def __init__(self, source: NodeSource, tolerated: Collection[str] = ()) -> None:
        self.tolerated = frozenset(tolerated)
        pool = _pool(source)
        self._connection_class: type[AbstractConnection] = pool.connection_class
        self._options = {name: value for name, value in pool.connection_kwargs.items() if name not in _NOT_OURS}
        if "path" in self._options:
            self.name = f"{self._options['path']}/{self._options.get('db') or 0}"
        else:
            host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
            self.name = f"{host}:{port}/{self._options.get('db') or 0}"

    def connect(self, timeout: float) -> AbstractConnection:
        """Return an open, authenticated connection.

        Raises:
            NodeFaultError: It could not be had within about ``timeout`` seconds a step.
        """
        quiet = {name: None for name in ("driver_info", "lib_name", "lib_version") if name in _PARAMETERS}
        if "driver_info" in quiet:
            quiet = {"driver_info": None}
        options: dict[str, Any] = {
            **self._options,
            **quiet,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        try:
            connection = self._connection_class(**options)
            connection.connect()  # type: ignore[no-untyped-call]
        except (redis.RedisError, OSError, ValueError) as error:
            raise fault(error) from error
        return connection


def nodes_id(nodes: Sequence[Node]) -> str:
    """Return a short hash of a node list, the same for every order."""
    return hashlib.sha256("\n".join(sorted(node.name for node in nodes)).encode()).hexdigest()[:8]


def talk(connection: AbstractConnection, *command: str | int) -> Any:
    """Send one command and wait for its reply, at most for the connection's time-out; an error reply is returned.

    Raises:
        NodeFaultError: The connection failed, or what answers is no Redis server.
    """
    sock, reader = socket_of(connection), new_reader()
    try:
        sock.sendall(pack(command))
        while (reply := reader.gets()) is PENDING:
            data = sock.recv(65_536)
            if not data:
                raise NodeFaultError("the server closed the connection")
            reader.feed(data)
    except ProtocolError as error:
        raise NodeFaultError(f"not a Redis server ({error})", permanent=True) from error
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


_PARAMETERS = inspect.signature(AbstractConnection.__init__).parameters


def _pool(source: NodeSource) -> redis.ConnectionPool:
    if isinstance(source, redis.Redis):
        return source.connection_pool
    if not isinstance(source, str):
        raise SettingsError(f"a node must be a URL or a redis-py client, not {type(source).__name__}")
    scheme, separator, rest = source.partition("://")
    if not separator or scheme not in ("redis", "rediss", "unix") or not rest.strip("/"):
        shown = f"{scheme}://..." if separator else "text without ://"
        raise SettingsError(f"a node must be a redis://, rediss:// or unix:// URL with an address, not {shown}")
    try:
        return redis.ConnectionPool.from_url(source)
    except (ValueError, TypeError) as error:
        address = rest.rpartition("@")[2]
        raise SettingsError(f"cannot read the URL of node {address!r}: {type(error).__name__}") from None


def parse_nodes(sources: Sequence[NodeSource | Node], tolerated: Collection[str] = ()) -> list[Node]:
    """Return the nodes in the given order.

    Args:
        sources: Where they are.
        tolerated: Rules that are not held against a server: "same_server", "replica", "cluster", "evicting".

    Raises:
        SettingsError: There are none, one cannot be read, or one is listed twice.
    """
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence):
        raise SettingsError("nodes must be a list of URLs or clients, one per independent server")
    if unknown := set(tolerated) - set(RULES):
        raise SettingsError(f"tolerate knows {', '.join(RULES)}, not {', '.join(sorted(unknown))}")
    nodes = [source if isinstance(source, Node) else Node(source, tolerated) for source in sources]
    if not nodes:
        raise SettingsError("nodes must name at least one server")
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"node {name} is listed twice; a majority must be of independent servers")
    return nodes


def packed(command: Command, *, by_text: bool = False) -> bytes:
    """Return a command as bytes, by the script's hash unless its text has to travel."""
    script = command.script
    call = ("EVAL", script.text) if by_text or script.by_text else ("EVALSHA", script.sha)
    return pack((*call, len(command.keys), *command.keys, *command.args))


def fault(error: Exception) -> NodeFaultError:
    """Translate what redis-py raised while connecting."""
    text = str(error) or type(error).__name__
    permanent = isinstance(error, (redis.AuthenticationError, redis.exceptions.InvalidResponse)) or _is_permanent(text)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        permanent = True
    elif isinstance(error, redis.exceptions.InvalidResponse):
        text = f"not a Redis server ({text})"
    return NodeFaultError(f"{type(error).__name__}: {text}", permanent=permanent)


def _is_permanent(text: str) -> bool:
    return any(mark in text for mark in _PERMANENT)


def closing_fault(reply: ReplyError) -> NodeFaultError | None:
    """Return the fault if an error reply means that this connection leads to no usable node."""
    text = str(reply)
    return NodeFaultError(text, permanent=_is_permanent(text)) if text.startswith(_CLOSING) else None


def vote(name: str, reply: Any) -> Vote:
    """Return the vote that a script's reply means; what is not of our scripts' form is unknown."""
    if isinstance(reply, ReplyError):
        return Vote(name, VoteKind.UNKNOWN, cause=str(reply), permanent=_is_permanent(str(reply)))
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], int) or reply[0] not in _KINDS:
        return Vote(name, VoteKind.UNKNOWN, cause=f"unexpected reply {str(reply)[:80]}")
    kind = _KINDS[reply[0]]
    rest = tuple([_text(value) for value in reply[1:]])
    return Vote(name, kind, rest, _guard_cause(rest) if kind is VoteKind.UNKNOWN else None)


def _text(value: Any) -> Any:
    if type(value) is bytes:
        return value.decode(errors="replace")
    return tuple([_text(each) for each in value]) if type(value) is list else value


def _guard_cause(rest: tuple[Any, ...]) -> str:
    reason, left_ms = rest[:2] if len(rest) > 1 else ("refused", 0)
    return f"may not vote ({reason})" + (f" for {int(left_ms) / 1000:g} s" if left_ms else "")
