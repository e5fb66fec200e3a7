"""Where records are kept: on the lock's nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import redis

from dramatiq_idem.claim import Claim, ClaimRequest, Outcome, Recorded
from dramatiq_idem.claims import ClaimProtocol
from dramatiq_idem.lookup import Lookup
from dramatiq_idem.record import Quorums, Record, State
from dramatiq_idem.repair import Repair
from dramatiq_idem.repairer import Repairer
from redlock import (
    LockProtocol,
    Nodes,
    Observer,
    Plan,
    Renewer,
    Settings,
    SettingsError,
    Term,
    Vote,
    clock,
    log_event,
    new_token,
    nodes_id,
    parse_nodes,
    quorum_size,
)

__all__ = ["Keeper", "RedlockStore", "Store"]


class Keeper(Protocol):
    """A store's promise to renew a claim until `end` is called."""

    def end(self) -> None:
        """Stop renewing, after a renewal that is under way."""


class Store(Protocol):
    """What the middleware needs of a store; safe to use from any thread."""

    @property
    def max_ttl_ms(self) -> int:
        """The longest lease that can be asked for, in milliseconds."""

    def check(self) -> None:
        """Raise SettingsError if the store can never work as it is configured; a node that is down is no such thing."""

    def claim(self, request: ClaimRequest) -> Outcome:
        """Claim a key once, and say what was found."""

    def keep(
        self, claim: Claim, on_lost: Callable[[str], None], on_renewed: Callable[[], None] | None = None
    ) -> Keeper:
        """Renew a claim from now on; call `on_lost` once, with the cause, if that fails until it is lost."""

    def complete(self, claim: Claim, result: str) -> Recorded | None:
        """Record a completion with its result as JSON or nothing; None if it is not certain to be remembered."""

    def abandon(self, claim: Claim, state: State, reason: str) -> bool:
        """Give a claim up; True if it was still ours."""

    def completion(self, name: str) -> Record | None:
        """Return the completion that stands for a record's name, if there is one."""

    def fence(self, claim: Claim) -> int | None:
        """Return a claim's fencing token; None if the claim is no longer certain to be ours."""

    def unclaimed(self, request: ClaimRequest) -> Claim:
        """Return what a completion without a claim is recorded under: for runs that were let through unprotected."""

    def forget(self, name: str, retention_ms: int, *, force: bool = False) -> int:
        """Begin a new generation of a key; return it."""

    def close(self) -> None:
        """Stop renewing and close connections."""


class RedlockStore:
    """Records on N independent Redis or Valkey nodes.

    Args:
        nodes: One URL or redis-py client per independent server.
        namespace: Prefix of every key; one per application. Default "idem".
        write_quorum: Nodes that must hold a completion before a message is acknowledged; default a majority, at most
            all.
        node_timeout: Seconds that a node has to answer; default 0.5.
        drift: Allowed difference between clock rates, as a share; default 0.01.
        max_ttl: Longest lease in seconds; a node that forgot waits this long before it votes. Default 30.
        restart_guard: Whether such a node has to wait; default True.
        durable_nodes: Your word that a restart forgets nothing, see `redlock.Settings`; default False.
        tolerate: What to use although it can never be safe: "same_server", "replica", "cluster", "evicting".
        observer: Is told about nodes; default: log it.
    Raises:
        SettingsError: Something can never work; nothing was sent.
    """

    def __init__(
        self,
        nodes: Sequence[str | redis.Redis],
        *,
        namespace: str = "idem",
        write_quorum: int | None = None,
        node_timeout: float = 0.5,
        drift: float = 0.01,
        max_ttl: float = 30.0,
        restart_guard: bool = True,
        durable_nodes: bool = False,
        tolerate: Collection[str] = (),
        observer: Observer = log_event,
    ) -> None:
        where = parse_nodes(nodes, tolerate)
        settings = Settings(
            namespace=namespace,
            max_ttl=max_ttl,
            node_timeout=node_timeout,
            drift=drift,
            restart_guard=restart_guard,
            durable_nodes=durable_nodes,
            nodes_id=nodes_id(where),
        )
        self._nodes = Nodes(where, node_timeout, observer)
        self._settings = settings
        quorums = Quorums(len(self._nodes), _write_quorum(write_quorum, len(self._nodes)))
        self._renewer = Renewer(self._nodes)
        locks = LockProtocol(settings, len(self._nodes), clock, new_token, observer)
        self._repair = Repair(settings, quorums, locks, observer, self._nodes.names)
        self._repairer = Repairer(self._nodes, self._repair)
        self._rules = ClaimProtocol(settings, quorums, clock, new_token, observer, self._repairer.wake)
        self._lookup = Lookup(settings, quorums)

    @property
    def max_ttl_ms(self) -> int:
        """The longest lease that can be asked for, in milliseconds."""
        return self._settings.max_ttl_ms

    def check(self) -> None:
        """Connect to the nodes.

        Raises:
            SettingsError: One refuses our password, is no Redis server, or is listed under two names.
        """
        self._nodes.check()

    def claim(self, request: ClaimRequest) -> Outcome:
        """Claim a key once, and say what was found."""
        return self._nodes.run(self._rules.claim(request))

    def keep(
        self, claim: Claim, on_lost: Callable[[str], None], on_renewed: Callable[[], None] | None = None
    ) -> Keeper:
        """Renew a claim from now on."""
        return _Kept(self._renewer, claim, self._rules, on_lost, on_renewed)

    def complete(self, claim: Claim, result: str) -> Recorded | None:
        """Record a completion; None if fewer than W nodes confirmed it in this attempt."""
        return self._nodes.run(self._rules.complete(claim, result))

    def abandon(self, claim: Claim, state: State, reason: str) -> bool:
        """Give a claim up; True if a quorum still had it."""
        return self._nodes.run(self._rules.abandon(claim, state, reason))

    def completion(self, name: str) -> Record | None:
        """Return the completion that W nodes hold, if there is one."""
        return self._nodes.run(self._lookup.completion(name))

    def fence(self, claim: Claim) -> int | None:
        """Return a claim's fencing token; None if the claim is no longer certain to be ours."""
        return self._nodes.run(self._rules.fence(claim))

    def unclaimed(self, request: ClaimRequest) -> Claim:
        """Return what a completion without a claim is recorded under."""
        now = clock()
        generation = self._nodes.run(self._lookup.generation(request.name))
        record = Record(State.RUNNING, generation, 0, new_token(), 0, 0, request.fingerprint, request.message_id)
        return Claim(request, record, Term(request.name, 0.0, now, now, clock))

    def forget(self, name: str, retention_ms: int, *, force: bool = False) -> int:
        """Begin a new generation of a key on all nodes; return it. Raises ForgetError where that is not possible."""
        return self._nodes.run(self._lookup.forget(name, retention_ms, force=force))

    def look(self, name: str) -> list[Vote]:
        """Read a key's record on all nodes, as `Lookup.look` says."""
        return self._nodes.run(self._lookup.look(name))

    def repair(self, *, accept_loss: bool = False, progress: Callable[[str, int], None] | None = None) -> bool:
        """Bring nodes that forgot up to date, see `Repair.repair`; True if all nodes may speak for the records."""
        return self._nodes.run(self._repair.repair(accept_loss=accept_loss, progress=progress))

    def close(self) -> None:
        """Stop renewing and repairing, and close the connections; what is claimed runs out."""
        self._repairer.close()
        self._renewer.close()
        self._nodes.close()


class _Kept:
    """A claim in the renewer's hands."""

    def __init__(
        self,
        renewer: Renewer,
        claim: Claim,
        rules: ClaimProtocol,
        on_lost: Callable[[str], None],
        on_renewed: Callable[[], None] | None,
    ) -> None:
        self._renewer = renewer
        self._on_renewed = on_renewed
        self._claim = claim
        self._rules = rules
        self.on_lost = on_lost
        renewer.add(self)

    @property
    def term(self) -> Term:
        return self._claim.term

    def renewal(self) -> Plan[bool]:
        is_renewed = yield from self._rules.renew(self._claim)
        if is_renewed and self._on_renewed is not None:
            self._on_renewed()
        return is_renewed

    def end(self) -> None:
        self._renewer.remove(self)


def _write_quorum(value: Any, nodes: int) -> int:
    if value is None:
        return quorum_size(nodes)
    if isinstance(value, bool) or not isinstance(value, int) or not quorum_size(nodes) <= value <= nodes:
        raise SettingsError(
            f"write_quorum must be from {quorum_size(nodes)} to {nodes} for {nodes} nodes, not {value!r}"
        )
    return value
