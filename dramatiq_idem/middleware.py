"""The middleware: Dramatiq's hooks.

What happens before a body is in entry.py, after it in completion.py, and where the hooks have to stand in placement.py.

What Dramatiq does to a middleware decides the form. Whatever leaves a ``before_*`` hook and is no MiddlewareError is
swallowed and the body runs: so every error becomes a deferral. ``after_*`` hooks swallow everything and acknowledge: so
what must not be acknowledged yet waits in ``before_ack``, where an error that is both a MiddlewareError and a
BrokerConnectionError makes Dramatiq ask again every five seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import redis
from dramatiq import Actor, Broker, Middleware, Worker
from dramatiq.broker import MessageProxy

from dramatiq_idem.body import wrap
from dramatiq_idem.completion import Completion
from dramatiq_idem.desk import Desk
from dramatiq_idem.entry import Entry
from dramatiq_idem.errors import OptionError, PlacementError
from dramatiq_idem.placement import RULES, arranged, check_placement
from dramatiq_idem.policies import ACTOR_OPTIONS, middleware_policy
from dramatiq_idem.rules import Rulebook
from dramatiq_idem.store import RedlockStore, Store
from redlock import NODE_RULES, Observer, SettingsError, clock, log_event

__all__ = ["Idempotency"]

_STORE_OPTIONS = ("namespace", "write_quorum", "node_timeout", "drift", "max_ttl", "restart_guard", "durable_nodes")

_logger = logging.getLogger("dramatiq_idem")


class Idempotency(Middleware):
    """Gives each message one completed run within its retention, whatever the broker redelivers.

    Args:
        nodes: One URL or redis-py client per independent server; or give a `store`.
        store: Where records are kept, instead of nodes.
        max_result_bytes: Largest result, as JSON, that is kept with the completion; default 4,096.
        observers: Further middleware classes that only watch, and therefore stand in front of this one.
        tolerate: Boot rules to lower to a warning ("order", "twice", "confirms"), and kinds of nodes to use although
            they can never be safe ("same_server", "replica", "cluster", "evicting").
        observer: Is called with each event; default: log it.
        options: namespace, write_quorum, node_timeout, drift, max_ttl and restart_guard as for `RedlockStore`; and the
            defaults for all actors, without their prefix: idempotent, key, lease, retention, require_key.
    Raises:
        redlock.SettingsError: Something about the nodes can never work; nothing was sent.
        OptionError: An option is unknown or out of range.
    """

    def __init__(
        self,
        nodes: Sequence[str | redis.Redis] | None = None,
        *,
        store: Store | None = None,
        max_result_bytes: int = 4096,
        observers: Sequence[type[Middleware]] = (),
        tolerate: Collection[str] = (),
        observer: Observer = log_event,
        **options: Any,
    ) -> None:
        if (nodes is None) == (store is None):
            raise SettingsError("give either nodes or a store")
        known = {*RULES, *NODE_RULES}
        if unknown := set(tolerate) - known:
            raise OptionError(f"tolerate knows {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}")
        if store is None:
            of_store = {name: options.pop(name) for name in _STORE_OPTIONS if name in options}
            of_nodes = set(tolerate) & set(NODE_RULES)
            store = RedlockStore(nodes or [], tolerate=of_nodes, observer=observer, **of_store)
        self._store = store
        self._rules = Rulebook(middleware_policy(max_ttl_ms=store.max_ttl_ms, **options), store.max_ttl_ms)
        self._desk = Desk(store, observer)
        self._entry = Entry(self._desk, self._rules)
        self._completion = Completion(self._desk, max_result_bytes)
        self._observers = tuple(observers)
        self._tolerated = frozenset(tolerate)

    def install(self, broker: Broker) -> Idempotency:
        """Add this middleware to a broker at its place: behind pure observers, in front of all others.

        Observers that stand further behind are moved to the front; what is added later has to be put in its place
        (``add_middleware(Prometheus(), before=Idempotency)``).

        Raises:
            OptionError: An actor that is declared already has options that cannot work.
        """
        broker.add_middleware(self)
        broker.middleware.remove(self)
        broker.middleware[:] = arranged(self, broker.middleware, self._observers)
        return self

    @property
    def actor_options(self) -> set[str]:
        """The options that may stand on an actor."""
        return set(ACTOR_OPTIONS)

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Refuse options that cannot work while the decorator that gave them is on the stack."""
        self._rules.declare(actor)

    def after_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Put our runner around the function; compile actors that were declared before this middleware was added."""
        self._rules.declare(actor)
        wrap(actor)

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Refuse to boot where the promises cannot be kept, before a single message is consumed."""
        self._desk.stopping_at = None
        for warning in check_placement(self, broker, self._observers, self._tolerated):
            _logger.warning("%s", warning)
        for warning in self._rules.warnings():
            _logger.warning("%s", warning)
        try:
            self._store.check()
        except SettingsError as error:
            raise PlacementError(str(error)) from error

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Note that waiting must come to an end."""
        self._desk.stopping_at = clock()

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Claim the message's key, or keep its body from running."""
        self._entry.enter(broker, message)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: object = None, exception: BaseException | None = None
    ) -> None:
        """Record the completion, or give the claim up."""
        self._completion.leave(broker, message, result, exception)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Give the claim up if another middleware skipped the message."""
        self._completion.give_up(message)

    def before_ack(self, broker: Broker, message: MessageProxy) -> None:
        """Hold the acknowledgement until nothing can be lost by it."""
        self._completion.acknowledge(broker, message)
