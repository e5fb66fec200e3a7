"""A way over from redlock-py: its `lock` and `unlock`, its key names, our votes, clock and clean-up.

A resource is locked under the very key that redlock-py uses, so a fleet in which some processes have moved and others
have not excludes itself. The price, for as long as this facade is used: there is no restart guard (the others know
nothing of it, and a node that restarts empty may let a second holder in), no fencing token and no renewal. When the
last process has moved, change to `redlock.Redlock`, with all processes stopped in between: its keys have other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import redis
import tenacity

from redlock.clock import clock, new_token, pauses
from redlock.driver import Nodes
from redlock.errors import SettingsError
from redlock.plan import Broadcast, Command, Plan, Sleep, take_back
from redlock.quorum import Verdict, is_decided, tally, validity
from redlock.scripts import PLAIN_ACQUIRE, RELEASE
from redlock.settings import check_resource, milliseconds, seconds

__all__ = ["Lock", "Redlock"]

_DRIFT = 0.01
_LONGEST = 86_400.0
"""Longest ttl in seconds; redlock-py has no bound, and a slip of units would lock for ever."""

Connection: TypeAlias = "str | redis.Redis | Mapping[str, Any]"


class Lock(NamedTuple):
    """What `Redlock.lock` returns, with redlock-py's names.

    Attributes:
        validity: Milliseconds for which the lock can be trusted from the moment it was returned.
        resource: What is locked.
        key: The random owner value.
    """

    validity: float
    resource: str
    key: str


class Redlock:
    """Locks as redlock-py's class of this name gives them.

    Args:
        connection_list: URLs, redis-py clients, or mappings with host, port, db and password.
        retry_count: Attempts, default 3.
        retry_delay: Longest pause between two of them in seconds, default 0.2; the pause is random.
        node_timeout: Seconds that a node has to answer, default 0.5.
    Raises:
        SettingsError: Something can never work; a node that is down is no such thing.
    """

    def __init__(
        self,
        connection_list: Sequence[Connection],
        retry_count: int | None = None,
        retry_delay: float | None = None,
        node_timeout: float = 0.5,
    ) -> None:
        retry_count = 3 if retry_count is None else retry_count
        retry_delay = seconds("retry_delay", 0.2 if retry_delay is None else retry_delay)
        node_timeout = seconds("node_timeout", node_timeout, least=0.001, most=60.0)
        if isinstance(retry_count, bool) or not isinstance(retry_count, int) or retry_count < 1:
            raise SettingsError(f"retry_count must be a whole number of attempts from 1, not {retry_count!r}")
        self._nodes = Nodes([_source(connection) for connection in connection_list], node_timeout)
        self._attempts = retry_count
        self._pause = tenacity.wait_random(0, retry_delay)
        self._timeout = node_timeout

    def lock(self, resource: str, ttl: int) -> Lock | bool:
        """Lock a resource for `ttl` milliseconds; False if a majority could not be had in all attempts."""
        if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
            raise SettingsError(f"ttl must be a number of milliseconds, not {ttl!r}")
        ttl_ms = milliseconds("ttl", ttl / 1000, most=_LONGEST, drift=_DRIFT)
        return self._nodes.run(self._lock(check_resource(resource), ttl_ms)) or False

    def unlock(self, lock: Lock) -> None:
        """Delete the lock wherever it is still ours."""
        self._nodes.run(self._unlock(lock))

    def close(self) -> None:
        """Close the connections."""
        self._nodes.close()

    def _lock(self, resource: str, ttl_ms: int) -> Plan[Lock | None]:
        waits = pauses(self._pause)
        for attempt in range(self._attempts):
            token = new_token()
            undo = self._release(resource, token)
            started = clock()
            votes = None
            try:
                command = Command(PLAIN_ACQUIRE, (resource,), (token, ttl_ms), undo)
                votes = yield Broadcast.to_all(command, len(self._nodes), self._timeout, is_decided)
            except BaseException:
                yield take_back(undo, votes, len(self._nodes), self._timeout)
                raise
            left = validity(ttl_ms / 1000, clock() - started, _DRIFT)
            if tally(votes) is Verdict.GRANTED and left > 0:
                return Lock(left * 1000, resource, token)
            yield take_back(undo, votes, len(self._nodes), self._timeout)
            if attempt < self._attempts - 1:
                yield Sleep(next(waits))
        return None

    def _unlock(self, lock: Lock) -> Plan[None]:
        yield Broadcast.to_all(self._release(lock.resource, lock.key), len(self._nodes), self._timeout, is_decided)

    @staticmethod
    def _release(resource: str, token: str) -> Command:
        return Command(RELEASE, (resource,), (token,), worth=30.0)


def _source(connection: Connection) -> str | redis.Redis:
    if not isinstance(connection, Mapping):
        return connection
    unknown = set(connection) - {"host", "port", "db", "password"}
    if unknown:
        raise SettingsError(
            f"a connection has host, port, db and password, not {', '.join(sorted(unknown))}; use a URL"
        )
    password = connection.get("password")
    login = f":{quote(password, safe='')}@" if password else ""
    address = f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"
    return f"redis://{login}{address}/{connection.get('db', 0)}"
