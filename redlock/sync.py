"""Locks for threads: `Redlock` and the `Lease` that it grants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from tenacity.wait import wait_base

from redlock.audit import NodeReport, audit
from redlock.driver import Nodes
from redlock.errors import LeaseLostError
from redlock.events import Observer, log_event
from redlock.held import DEFAULT_PAUSE, HeldLease, Options, Rules
from redlock.lease import Grant
from redlock.node import NodeSource
from redlock.renewer import Renewer
from redlock.settings import Duration

__all__ = ["Lease", "Redlock"]


class Lease(HeldLease["Lease"]):
    """A held lock. Threads may share it; a process that was forked off may not use it."""

    def __init__(self, rules: Rules, grant: Grant, options: Options[Lease], nodes: Nodes, renewer: Renewer) -> None:
        super().__init__(rules, grant, options)
        self._nodes = nodes
        self._renewer = renewer

    def extend(self) -> bool:
        """Lengthen the lease by its ttl from now.

        Returns:
            True if a quorum did so. False otherwise: the lease keeps the validity that it has, and when that has
            ended it is lost for good; an ended lease is never revived.
        """
        self._check_process()
        return not self._released and self._nodes.run(self.renewal())

    def release(self) -> bool:
        """Give the lock back, after an extension that is under way has ended.

        Returns:
            True if it was still ours on a quorum; False if it was lost or released before. After an interruption it
            can be called again.
        """
        self._check_process()
        if self._released:
            return False
        self._renewer.remove(self)
        self._was_lost = self.term.is_lost
        still_ours = self._nodes.run(self._rules.protocol.release(self.resource, self.token))
        self._released = True
        return still_ours and not self._was_lost


OnLost: TypeAlias = Callable[[Lease], None]


class Redlock:
    """Locks with a time limit, granted by a majority of independent Redis or Valkey nodes.

    Args:
        nodes: One URL or redis-py client per independent server. A majority of these must answer; one node works but
            does not survive its loss.
        ttl: Life of a lease in seconds, or a timedelta; default 10, or max_ttl if that is shorter.
        pause: Tenacity wait strategy between attempts; default random from 0.02 to 0.2 s.
        observer: Is called with each event; default: log it.
        tolerate: What to use although it can never be safe: "same_server", "replica", "cluster", "evicting".
        **settings: The other fields of `Settings`: namespace, max_ttl, node_timeout, drift, restart_guard.
    Raises:
        SettingsError: Something can never work. Nothing was sent; a node that is down is no such thing.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSource],
        ttl: Duration | None = None,
        *,
        pause: wait_base = DEFAULT_PAUSE,
        observer: Observer = log_event,
        tolerate: Collection[str] = (),
        **settings: Any,
    ) -> None:
        self._rules = Rules(nodes, ttl, pause, observer, tolerate, **settings)
        self._nodes = Nodes(self._rules.nodes, self._rules.settings.node_timeout, observer)
        self._renewer = Renewer(self._nodes)

    def __repr__(self) -> str:
        return f"Redlock({', '.join(self._nodes.names)})"

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
            on_lost: Called once, on a thread of its own, if a renewed lease is lost.
        Raises:
            LockHeldError: A quorum refused.
            QuorumUnreachableError: Too few nodes could vote.
            SettingsError: An argument can never work, or two nodes are the same server.
        """
        options = Options.of(max_hold, on_lost)
        grant = self._nodes.run(self._rules.acquire(resource, ttl, wait))
        return Lease(self._rules, grant, options, self._nodes, self._renewer)

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
        grant = self._nodes.run(self._rules.attach(resource, token, ttl))
        return Lease(self._rules, grant, Options(None, None), self._nodes, self._renewer)

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
            self._renewer.add(lease)
            yield lease
            cause = lease.term.cause if lease.lost else None
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
        self._nodes.run(self._rules.protocol.bootstrap(force=force))

    def audit(self) -> list[NodeReport]:
        """Find out about each node what may go wrong; see `NodeReport`. Takes some round trips per node."""
        return audit(self._rules.nodes, self._rules.settings)

    def close(self) -> None:
        """Stop renewing and close the connections; leases that are still held run out."""
        self._renewer.close()
        self._nodes.close()
