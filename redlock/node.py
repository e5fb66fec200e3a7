"""One node: its address without secrets, how to connect to it, and what its replies mean as votes.

redis-py's exceptions end here; everything above knows votes and faults.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import ssl
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from redlock.errors import SettingsError
from redlock.facts import RULES

__all__ = [
    "NO_TLS_HINT",
    "TLS_HINT",
    "Node",
    "NodeFaultError",
    "NodeSource",
    "fault",
    "is_permanent",
    "nodes_id",
    "parse_nodes",
]

NodeSource: TypeAlias = "str | redis.Redis"
"""A redis://, rediss:// or unix:// URL; or a redis-py client, of which only the configuration is used."""

TLS_HINT = " (if the port speaks TLS, use rediss://)"
NO_TLS_HINT = " (does the port speak TLS? if not, use redis://)"
_PERMANENT = (
    "ACL failure",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "DB index",
    "INFO is refused",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "TWICE",
    "WRONGPASS",
    "invalid password",
    "invalid username-password",
    "unknown command",
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
        place: How to call it in an error while its name is not known.
        tolerated: Rules of `facts.RULES` that are not held against the server.
    """

    def __init__(self, source: NodeSource, tolerated: Collection[str] = (), place: str = "a node") -> None:
        self.tolerated = frozenset(tolerated)
        pool = _pool(source, place)
        self._connection_class: type[AbstractConnection] = pool.connection_class
        self._options = {name: value for name, value in pool.connection_kwargs.items() if name not in _NOT_OURS}
        if "path" in self._options:
            self.name = f"{self._options['path']}/{self._options.get('db') or 0}"
        else:
            host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
            self.name = f"{host}:{port}/{self._options.get('db') or 0}"
        self.is_tls = issubclass(self._connection_class, redis.SSLConnection)
        try:
            self._make(1.0)
        except (redis.RedisError, TypeError, ValueError) as error:
            raise SettingsError(f"node {self.name} has an option that cannot work: {type(error).__name__}") from None

    def connect(self, timeout: float) -> AbstractConnection:
        """Return an open, authenticated connection.

        Raises:
            NodeFaultError: It could not be had within about ``timeout`` seconds a step.
        """
        connection = self._make(timeout)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise fault(error, is_tls=self.is_tls) from error
        return connection

    def _make(self, timeout: float) -> AbstractConnection:
        """Return a connection that is not open yet, with everything switched off that would act behind our back."""
        quiet = ("driver_info",) if "driver_info" in _PARAMETERS else ("lib_name", "lib_version")
        options: dict[str, Any] = {
            **self._options,
            **{name: None for name in quiet if name in _PARAMETERS},
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        return self._connection_class(**options)


def nodes_id(nodes: Sequence[Node]) -> str:
    """Return a short hash of a node list, the same for every order."""
    return hashlib.sha256("\n".join(sorted(node.name for node in nodes)).encode()).hexdigest()[:8]


_PARAMETERS = inspect.signature(AbstractConnection.__init__).parameters


def _pool(source: NodeSource, place: str) -> redis.ConnectionPool:
    if isinstance(source, redis.Redis):
        return source.connection_pool
    if not isinstance(source, str):
        raise SettingsError(f"{place} must be a URL or a redis-py client, not {type(source).__name__}")
    try:
        parts = urlsplit(source)
        address = f"{parts.hostname}:{parts.port}" if parts.hostname else parts.path
    except ValueError:  # not said which: what cannot be read may hold a password anywhere
        raise SettingsError(f"{place} has a URL that cannot be read (is the port a number?)") from None
    if parts.scheme not in ("redis", "rediss", "unix") or not (
        parts.path if parts.scheme == "unix" else parts.hostname
    ):
        raise SettingsError(f"{place} must be a redis://, rediss:// or unix:// URL with an address")
    if parts.scheme != "unix" and not re.fullmatch(r"(/[0-9]*)?", parts.path):  # redis-py takes any other for 0
        raise SettingsError(f"{place}, {address}, has a path that is no number of a database")
    try:
        return redis.ConnectionPool.from_url(source)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{place}, {address}, has a URL with a wrong option: {type(error).__name__}") from None


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
    nodes = [
        source if isinstance(source, Node) else Node(source, tolerated, f"node {number}")
        for number, source in enumerate(sources, 1)
    ]
    if not nodes:
        raise SettingsError("nodes must name at least one server")
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"node {name} is listed twice; a majority must be of independent servers")
    return nodes


def fault(error: Exception, *, is_tls: bool = False) -> NodeFaultError:
    """Translate what redis-py raised while connecting."""
    text = str(error) or type(error).__name__
    permanent = isinstance(error, redis.AuthenticationError) or is_permanent(text)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        permanent = True
    elif is_tls and isinstance(error, (redis.TimeoutError, redis.ConnectionError, ssl.SSLError)) and "111" not in text:
        text += NO_TLS_HINT
    elif not isinstance(error, (redis.RedisError, OSError)) or isinstance(error, redis.exceptions.InvalidResponse):
        text, permanent = f"not a Redis server ({text})", True
    elif "reset" in text.lower() or "closed by server" in text:
        text += TLS_HINT
    return NodeFaultError(f"{type(error).__name__}: {text}", permanent=permanent)


def is_permanent(text: str) -> bool:
    """Return whether an error stays until somebody changes a setting."""
    return any(mark in text for mark in _PERMANENT)
