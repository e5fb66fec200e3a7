"""Where the middleware stands in the broker's chain, and why.

Dramatiq calls ``before_*`` hooks in list order and ``after_*`` hooks in the reverse order. So whoever stands first of
those who act claims before anybody else can decide (AgeLimit would fail a late duplicate of a finished message), and
completes after everybody else has done their part (result stored, next step queued, time limit disarmed). Pure
observers stand in front of it: they pair their before and after hooks, and a skip raised in front of them breaks pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dramatiq import Broker, Middleware
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Retries

from dramatiq_idem.errors import PlacementError

__all__ = ["RULES", "arranged", "check_placement"]

_OBSERVERS = {
    "dramatiq.middleware.prometheus",
    "sentry_sdk.integrations.dramatiq",
    "opentelemetry",
    "ddtrace",
    "elasticapm",
}
"""Modules (and what is below them) of middleware that only watches."""

RULES = ("order", "twice", "confirms")
"""Names of the rules that can be lowered to a warning."""


def is_observer(middleware: Middleware, more: Sequence[type[Middleware]]) -> bool:
    """Return whether a middleware only watches: by its module, or because the user named its class."""
    module = type(middleware).__module__
    return isinstance(middleware, tuple(more)) or any(
        module == name or module.startswith(f"{name}.") for name in _OBSERVERS
    )


def arranged(ours: Middleware, others: Sequence[Middleware], observers: Sequence[type[Middleware]]) -> list[Middleware]:
    """Return the chain as it should be: pure observers, then ours, then those who act; else in the order given."""
    watching = [middleware for middleware in others if is_observer(middleware, observers)]
    acting = [middleware for middleware in others if not is_observer(middleware, observers)]
    return [*watching, ours, *acting]


def check_placement(
    ours: Middleware, broker: Broker, observers: Sequence[type[Middleware]], tolerated: Collection[str]
) -> list[str]:
    """Return warnings about a broker's chain.

    Raises:
        PlacementError: A promise could not be kept; the message says how to mend it or which rule to lower.
    """
    chain = broker.middleware
    problems = dict(_problems(ours, broker, chain, observers))
    fatal = [f"{text} (rule {rule!r})" for rule, text in problems.items() if rule in RULES and rule not in tolerated]
    if fatal:
        raise PlacementError("; ".join(fatal))
    return list(problems.values())


def _problems(
    ours: Middleware, broker: Broker, chain: Sequence[Middleware], observers: Sequence[type[Middleware]]
) -> list[tuple[str, str]]:
    name = type(ours).__name__
    problems = []
    if sum(isinstance(middleware, type(ours)) for middleware in chain) > 1:
        problems.append(("twice", f"{name} is in the chain twice: each would take the other's claim for a duplicate"))
    where = next((i for i, middleware in enumerate(chain) if middleware is ours), None)
    if where is not None:
        acting = [m for m in chain[:where] if not is_observer(m, observers) and not isinstance(m, type(ours))]
        watching = [m for m in chain[where:] if is_observer(m, observers)]
        wrong = [f"{type(m).__name__} must stand behind {name}" for m in acting]
        wrong += [
            f"{type(m).__name__} must stand in front of {name} (add_middleware(..., before={name}))" for m in watching
        ]
        if wrong:
            problems.append(("order", f"{', '.join(wrong)}; use {name}.install(broker)"))
    if getattr(broker, "confirm_delivery", None) is False:
        problems.append(
            (
                "confirms",
                "RabbitmqBroker publishes without confirms, deferred copies may be lost: set confirm_delivery=True",
            )
        )
    if not isinstance(broker, StubBroker) and not any(isinstance(middleware, Retries) for middleware in chain):
        problems.append(("retries", "without the Retries middleware Dramatiq drops a message whose body raises"))
    return problems
