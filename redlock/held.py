"""What the thread and the asyncio lock share: arguments in, plans out, and all about a lease that needs no IO."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tenacity
from tenacity.wait import wait_base

from redlock.clock import clock, new_token, pauses
from redlock.errors import LeaseLostError
from redlock.events import LeaseLost, Observer, notify
from redlock.fencing import fencing_token
from redlock.lease import Grant, Term
from redlock.node import Node, NodeSource, nodes_id, parse_nodes
from redlock.plan import Plan
from redlock.protocol import LockProtocol
from redlock.settings import Duration, Settings, check_resource, seconds

__all__ = ["DEFAULT_PAUSE", "HeldLease", "Rules"]

DEFAULT_PAUSE = tenacity.wait_random(0.02, 0.2)
"""Seconds between attempts: random, so that clients which split the votes do not meet again."""

L = TypeVar("L", bound="HeldLease[Any]")


class Rules:
    """The settings of a lock and the plans that follow from them; validated before any IO."""

    def __init__(
        self,
        sources: Sequence[NodeSource],
        ttl: Duration | None,
        pause: wait_base,
        observer: Observer,
        tolerate: Collection[str],
        **settings: Any,
    ) -> None:
        self.nodes: list[Node] = parse_nodes(sources, tolerate)
        default = None if ttl is None else seconds("ttl", ttl)
        self.settings = Settings(ttl=default, nodes_id=nodes_id(self.nodes), **settings)
        self.observer = observer
        self.protocol = LockProtocol(self.settings, len(self.nodes), clock, new_token, observer)
        self._pause = pause

    def acquire(self, resource: str, ttl: Duration | None, wait: Duration) -> Plan[Grant]:
        """Return the plan that acquires a lease."""
        ttl_ms = self.settings.ttl_ms("ttl", ttl)
        return self.protocol.acquire(check_resource(resource), ttl_ms, seconds("wait", wait), pauses(self._pause))

    def attach(self, resource: str, token: str, ttl: Duration | None) -> Plan[Grant]:
        """Return the plan that goes on with another process's lease."""
        return self.protocol.attach(check_resource(resource), token, self.settings.ttl_ms("ttl", ttl))


@dataclass(frozen=True, slots=True)
class Options(Generic[L]):
    """How a lease is kept, checked before it is acquired."""

    max_hold: float | None
    on_lost: Callable[[L], None] | None

    @classmethod
    def of(cls, max_hold: Duration | None, on_lost: Callable[[L], None] | None) -> Options[L]:
        """Check the options."""
        return cls(None if max_hold is None else seconds("max_hold", max_hold), on_lost)


class HeldLease(Generic[L]):
    """A held lock. Nothing here does IO."""

    def __init__(self, rules: Rules, grant: Grant, options: Options[Any]) -> None:
        self.token = grant.token
        """The random owner value on the nodes; hand it to `attach` in another process."""
        self.term = Term(grant.resource, grant.ttl, grant.started, grant.valid_until, clock, options.max_hold)
        self._rules = rules
        self._grant = grant
        self._on_lost = options.on_lost
        self._pid = os.getpid()
        self._released = False
        self._was_lost = False

    def __repr__(self) -> str:
        state = "released" if self._released else f"{self.remaining():.3f} s left"
        return f"{type(self).__name__}({self.resource!r}, {state})"

    @property
    def resource(self) -> str:
        """What is locked."""
        return self.term.resource

    @property
    def validity(self) -> float:
        """Seconds for which the lease may still be trusted; 0.0 when it is lost or released."""
        return self.remaining()

    def remaining(self) -> float:
        """Return the seconds for which the lease may still be trusted; 0.0 when it is lost or released."""
        return 0.0 if self._released else self.term.remaining()

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released."""
        return self.term.is_lost if not self._released else self._was_lost

    @property
    def fencing_token(self) -> int:
        """An integer that grows with every lease on the resource; the protected resource refuses smaller ones.

        Raises:
            FencingUnavailableError: No majority confirmed it, the restart guard is off, or the nodes' clocks were
                found so far apart that a node which lost its counters could start below an earlier token.
        """
        return fencing_token(self._grant, self._rules.settings)

    def check(self) -> None:
        """Do nothing while the lease is valid.

        Raises:
            LeaseLostError: It is lost or was released; somebody else may hold the lock now.
        """
        if self._released:
            raise LeaseLostError(self.resource, "it was released")
        self.term.check()

    def renewal(self) -> Plan[bool]:
        """Return the plan that extends this lease once."""
        return self._rules.protocol.extend(self.term, self.token, self._grant.fence)

    def on_lost(self, cause: str) -> None:
        """Be told by the renewer that the lease is lost."""
        notify(self._rules.observer, LeaseLost(self.resource, cause))
        if self._on_lost is not None:
            self._on_lost(self)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise LeaseLostError(self.resource, "it belongs to the process that acquired it")
