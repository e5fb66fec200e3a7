"""Locks for asyncio: `AsyncRedlock` and the `AsyncLease` that it grants; names and arguments as in sync.py, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, TypeAlias

from tenacity.wait import wait_base

from redlock.aio_driver import AsyncNodes, AsyncRenewer
from redlock.audit import NodeReport, audit
from redlock.errors import LeaseLostError
from redlock.events import Observer, log_event
from redlock.held import DEFAULT_PAUSE, HeldLease, Options, Rules
from redlock.lease import Grant
from redlock.node import NodeSource
from redlock.settings import Duration

__all__ = ["AsyncLease", "AsyncRedlock"]


class AsyncLease(HeldLease["AsyncLease"]):
    """A held lock. Tasks of one event loop may share it; a process that was forked off may not use it."""

    def __init__(
        self, rules: Rules, grant: Grant, options: Options[AsyncLease], nodes: AsyncNodes, renewer: AsyncRenewer
    ) -> None:
        super().__init__(rules, grant, options)
        self._nodes = nodes
        self._renewer = renewer

    async def extend(self) -> bool:
        """Lengthen the lease by its ttl from now.

        Returns:
            True if a quorum did so. False otherwise: the lease keeps the validity that it has, and when that has
            ended it is lost for good; an ended lease is never revived.
        """
        self._check_process()
        return not self._released and await self._nodes.run(self.renewal())

    async def release(self) -> bool:
        """Give the lock back, after an extension that is under way has ended.

        Returns:
            True if it was still ours on a quorum; False if it was lost or released before. After an interruption it
            can be called again.
        """
        self._check_process()
        if self._released:
            return False
        await self._renewer.remove(self)
        self._was_lost = self.term.is_lost
        still_ours = await self._nodes.run(self._rules.protocol.release(self.resource, self.token))
        self._released = True
        return still_ours and not self._was_lost


OnLost: TypeAlias = Callable[[AsyncLease], None]


class AsyncRedlock:
    """Locks with a time limit, granted by a majority of independent Redis or Valkey nodes; for one event loop.

    A task that is cancelled while it acquires leaves nothing behind: what may have been granted is taken back.

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
        self._nodes = AsyncNodes(self._rules.nodes, self._rules.settings.node_timeout, observer)
        self._renewer = AsyncRenewer(self._nodes)

    def __repr__(self) -> str:
        return f"AsyncRedlock({', '.join(self._nodes.names)})"

    async def acquire(
        self,
        resource: str,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        *,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> AsyncLease:
        """Acquire a lease that ends after its ttl unless it is extended.

        Args:
            resource: What to lock: text of at most 1,024 bytes.
            ttl: Seconds or timedelta; default the ttl of this AsyncRedlock.
            wait: Seconds for which to try again; default 0: one attempt.
            max_hold: Seconds after which `lock` no longer renews; default no limit.
            on_lost: Called once, on the event loop, if a renewed lease is lost.
        Raises:
            LockHeldError: A quorum refused.
            QuorumUnreachableError: Too few nodes could vote.
            SettingsError: An argument can never work, or two nodes are the same server.
        """
        options = Options.of(max_hold, on_lost)
        grant = await self._nodes.run(self._rules.acquire(resource, ttl, wait))
        return AsyncLease(self._rules, grant, options, self._nodes, self._renewer)

    async def attach(self, resource: str, token: str, ttl: Duration | None = None) -> AsyncLease:
        """Go on with a lease that another process acquired: it is extended first, which gives it its validity here.

        The other process must stop using its own lease object, without releasing it.

        Args:
            resource: What is locked.
            token: The other lease's `token`.
            ttl: Seconds or timedelta from now; default the ttl of this AsyncRedlock.
        Raises:
            LockHeldError: The lease has ended or is not under this token.
            QuorumUnreachableError: Too few nodes answered.
        """
        grant = await self._nodes.run(self._rules.attach(resource, token, ttl))
        return AsyncLease(self._rules, grant, Options(None, None), self._nodes, self._renewer)

    @contextlib.asynccontextmanager
    async def lock(
        self, resource: str, ttl: Duration | None = None, wait: Duration = 0.0, **options: Any
    ) -> AsyncIterator[AsyncLease]:
        """Hold a lease while the body runs, renewing it; arguments and errors as for `acquire`.

        The body never runs without the lock. If the lease is lost meanwhile the body goes on (`lease.check()` tells
        it).

        Raises:
            LeaseLostError: After the body, if the lease was lost and the body raised nothing itself.
        """
        lease = await self.acquire(resource, ttl, wait, **options)
        try:
            self._renewer.add(lease)
            yield lease
            cause = lease.term.cause if lease.lost else None
        finally:
            await lease.release()
        if cause is not None:
            raise LeaseLostError(resource, cause)

    async def bootstrap(self, *, force: bool = False) -> None:
        """Let new nodes vote at once instead of after max_ttl; all must answer.

        Args:
            force: Also where a node has voted before. Only right if no lease of the namespace is held anywhere.
        Raises:
            SettingsError: A node has voted before.
            QuorumUnreachableError: A node does not answer.
        """
        await self._nodes.run(self._rules.protocol.bootstrap(force=force))

    async def audit(self) -> list[NodeReport]:
        """Find out about each node what may go wrong; see `NodeReport`. Runs on a thread of its own."""
        return await asyncio.to_thread(audit, self._rules.nodes, self._rules.settings)

    async def close(self) -> None:
        """Stop renewing and close the connections; leases that are still held run out."""
        await self._renewer.close()
        await self._nodes.close()
