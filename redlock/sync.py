"""Locks for threads: `Redlock` and the `Lease` that it grants."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tenacity
from tenacity.wait import wait_base

from redlock.driver import Nodes, clock, new_token, pauses
from redlock.errors import LeaseLostError
from redlock.events import LeaseLost, Observer, log_event, notify
from redlock.lease import Grant, Term
from redlock.node import NodeSource
from redlock.plan import Plan
from redlock.protocol import LockProtocol, fencing_token
from redlock.renewer import Renewer
from redlock.settings import Duration, Settings, check_resource, seconds

__all__ = ["DEFAULT_PAUSE", "Lease", "Redlock"]

DEFAULT_PAUSE = tenacity.wait_random(0.02, 0.2)
"""Seconds between attempts: random, so that clients which split the votes do not meet again."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What a Redlock and its leases work with."""

    nodes: Nodes
    protocol: LockProtocol
    renewer: Renewer
    observer: Observer
    settings: Settings


class Lease:
    """A held lock. Threads may share it; a process that was forked off may not use it."""

    def __init__(self, engine: _Engine, grant: Grant, max_hold: float | None, on_lost: OnLost | None) -> None:
        self.token = grant.token
        self.term = Term(grant.resource, grant.ttl, grant.started, grant.valid_until, clock, max_hold)
        self._grant = grant
        self._engine = engine
        self._on_lost = on_lost
        self._pid = os.getpid()
        self._released = False

    @property
    def resource(self) -> str:
        """What is locked."""
        return self.term.resource

    @property
    def validity(self) -> float:
        """Seconds for which the lease may still be trusted; 0.0 when it is lost or released."""
        return self.remaining()

    def remaining(self) -> float:
        """Return the seconds for which the lease may still be trusted, without IO; 0.0 when lost or released."""
        return 0.0 if self._released else self.term.remaining()

    @property
    def lost(self) -> bool:
        """Whether the lease ended without being released."""
        return not self._released and self.term.is_lost

    @property
    def fencing_token(self) -> int:
        """An integer that grows with every lease on the resource; the protected resource refuses smaller ones.

        Raises:
            FencingUnavailableError: No majority confirmed it, the restart guard is off, or the nodes' clocks were
                found so far apart that a node which lost its counters could start below an earlier token.
        """
        return fencing_token(self._grant, self._engine.settings)

    def check(self) -> None:
        """Do nothing while the lease is valid; no IO.

        Raises:
            LeaseLostError: It is lost or was released; somebody else may hold the lock now.
        """
        if self._released:
            raise LeaseLostError(self.resource, "it was released")
        self.term.check()

    def extend(self) -> bool:
        """Lengthen the lease by its ttl from now.

        Returns:
            True if a quorum did so. False otherwise: the lease keeps the validity that it has, and when that has
            ended it is lost for good; an ended lease is never revived.
        """
        self._check_process()
        return not self._released and self._engine.nodes.run(self.renewal())

    def release(self) -> bool:
        """Give the lock back, after an extension that is under way has ended.

        Returns:
            True if it was still ours on a quorum; False if it was lost or released before. After an interruption it
            can be called again.
        """
        self._check_process()
        if self._released:
            return False
        self._engine.renewer.remove(self)
        was_lost = self.lost
        still_ours = self._engine.nodes.run(self._engine.protocol.release(self.resource, self.token))
        self._released = True
        return still_ours and not was_lost

    def renewal(self) -> Plan[bool]:
        """Return the plan that extends this lease once; for the renewer."""
        return self._engine.protocol.extend(self.term, self.token)

    def on_lost(self, cause: str) -> None:
        """Be told by the renewer that the lease is lost."""
        notify(self._engine.observer, LeaseLost(self.resource, cause))
        if self._on_lost is not None:
            self._on_lost(self)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise LeaseLostError(self.resource, "it belongs to the process that acquired it")


OnLost = Callable[[Lease], None]


class Redlock:
    """Locks with a time limit, granted by a majority of independent Redis or Valkey nodes.

    Args:
        nodes: One URL or redis-py client per independent server. A majority of these must answer; one node works but
            does not survive its loss.
        ttl: Life of a lease in seconds, or a timedelta; default 10.
        pause: Tenacity wait strategy between attempts; default random from 0.02 to 0.2 s.
        observer: Is called with each event; default: log it.
        **settings: The other fields of `Settings`: namespace, max_ttl, node_timeout, drift, restart_guard.
    Raises:
        SettingsError: Something can never work. Nothing was sent; a node that is down is no such thing.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSource],
        ttl: Duration = 10.0,
        *,
        pause: wait_base = DEFAULT_PAUSE,
        observer: Observer = log_event,
        **settings: Any,
    ) -> None:
        self._settings = Settings(ttl=seconds("ttl", ttl), **settings)
        nodes_ = Nodes(nodes, self._settings.node_timeout, observer)
        protocol = LockProtocol(self._settings, len(nodes_), clock, new_token, observer)
        self._engine = _Engine(nodes_, protocol, Renewer(nodes_), observer, self._settings)
        self._pause = pause

    def __repr__(self) -> str:
        return f"Redlock({', '.join(self._engine.nodes.names)})"

    def acquire(
        self,
        resource: str,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        *,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """Acquire a lease that ends after its ttl unless it is extended.

        Args:
            resource: What to lock: text of at most 1,024 bytes.
            ttl: Seconds or timedelta; default the ttl of this Redlock.
            wait: Seconds for which to try again; default 0: one attempt.
            max_hold: Seconds after which `lock` no longer renews; default no limit.
            on_lost: Called once, on the renewing thread, if a renewed lease is lost.
        Raises:
            LockHeldError: A quorum refused.
            QuorumUnreachableError: Too few nodes could vote.
            SettingsError: An argument can never work, or two nodes are the same server.
        """
        check_resource(resource)
        ttl_ms = self._settings.ttl_ms("ttl", ttl)
        plan = self._engine.protocol.acquire(resource, ttl_ms, seconds("wait", wait), pauses(self._pause))
        longest = None if max_hold is None else seconds("max_hold", max_hold)
        return Lease(self._engine, self._engine.nodes.run(plan), longest, on_lost)

    def attach(self, resource: str, token: str, ttl: Duration | None = None) -> Lease:
        """Go on with a lease that another process acquired: it is extended first, which gives it its validity here.

        The other process must stop using its own lease object, without releasing it.

        Args:
            resource: What is locked.
            token: The other lease's `token`.
            ttl: Seconds or timedelta from now; default the ttl of this Redlock.
        Raises:
            LockHeldError: The lease has ended or is not under this token.
            QuorumUnreachableError: Too few nodes answered.
        """
        check_resource(resource)
        plan = self._engine.protocol.attach(resource, token, self._settings.ttl_ms("ttl", ttl))
        return Lease(self._engine, self._engine.nodes.run(plan), None, None)

    @contextlib.contextmanager
    def lock(self, resource: str, ttl: Duration | None = None, wait: Duration = 0.0, **options: Any) -> Iterator[Lease]:
        """Hold a lease while the body runs, renewing it; arguments and errors as for `acquire`.

        The body never runs without the lock. If the lease is lost meanwhile the body goes on (`lease.check()` tells
        it).

        Raises:
            LeaseLostError: After the body, if the lease was lost and the body raised nothing itself.
        """
        lease = self.acquire(resource, ttl, wait, **options)
        try:
            self._engine.renewer.add(lease)
            yield lease
            cause = lease.term.cause
        finally:
            lease.release()
        if cause is not None:
            raise LeaseLostError(resource, cause)

    def bootstrap(self, *, force: bool = False) -> None:
        """Let new nodes vote at once instead of after max_ttl; all must answer.

        Args:
            force: Also where a node has voted before. Only right if no lease of the namespace is held anywhere.
        Raises:
            SettingsError: A node has voted before.
            QuorumUnreachableError: A node does not answer.
        """
        self._engine.nodes.run(self._engine.protocol.bootstrap(force=force))

    def close(self) -> None:
        """Stop renewing and close the connections; leases that are still held run out."""
        self._engine.renewer.close()
        self._engine.nodes.close()
