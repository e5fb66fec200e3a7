"""Events, counted for Prometheus.

    from dramatiq_idem.metrics import PrometheusObserver, combine

    Idempotency(nodes, observer=combine(log_event, PrometheusObserver())).install(broker)

Dramatiq's Prometheus middleware serves the numbers of all worker processes at one address. It relies on a directory
that it names in the environment when a worker process has booted: whoever imports prometheus_client before that makes
all metrics of the process vanish. So it is imported for the first event that tells of a message, or once the directory
is named; events about nodes that come earlier, while modules are imported, are kept until then.

What an event counts for is one table. Labels are the actor or the node, and words of a fixed list; never a key.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import redlock
from dramatiq_idem import events
from redlock import Event, Observer, SettingsError, notify

__all__ = ["METRICS", "Measurement", "Metric", "PrometheusObserver", "combine", "measure"]

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
"""Seconds: from one round trip in a rack to the longest time for which an acknowledgement is held."""
_MOST_EARLY = 1_000
"""Events that are kept while it is too early to count; of more, the oldest are dropped."""

_VERBS = {"Counter": "inc", "Histogram": "observe", "Gauge": "set"}
_logger = logging.getLogger("dramatiq_idem")


class Metric(NamedTuple):
    """What Prometheus is told of a metric; the kind is the name of a class of prometheus_client."""

    kind: str
    help: str
    labels: tuple[str, ...] = ("actor",)


METRICS = {
    "dramatiq_idem_claims_total": Metric(
        "Counter", "Deliveries, by granted, completed, busy, unavailable or refused.", ("actor", "outcome")
    ),
    "dramatiq_idem_claim_seconds": Metric("Histogram", "How long a claim took that was granted."),
    "dramatiq_idem_takeovers_total": Metric("Counter", "Claims taken over from a run that ended with its lease."),
    "dramatiq_idem_completion_seconds": Metric("Histogram", "From a body's end until its completion was recorded."),
    "dramatiq_idem_completions_unrecorded_total": Metric("Counter", "Acknowledged without a recorded completion."),
    "dramatiq_idem_duplicates_total": Metric("Counter", "Not run, by how and why.", ("actor", "how", "reason")),
    "dramatiq_idem_deferrals_total": Metric("Counter", "Put back, by busy or unavailable.", ("actor", "reason")),
    "dramatiq_idem_given_up_total": Metric("Counter", "Claims given up, by free or failed.", ("actor", "state")),
    "dramatiq_idem_lease_renewals_total": Metric("Counter", "Renewals of the leases of running bodies."),
    "dramatiq_idem_leases_lost_total": Metric("Counter", "Leases lost while their body ran."),
    "dramatiq_idem_double_runs_total": Metric("Counter", "Bodies that ran although another run was completed."),
    "dramatiq_idem_forgotten_total": Metric("Counter", "Completions of keys that were forgotten meanwhile."),
    "dramatiq_idem_dead_letters_total": Metric("Counter", "Messages sent to the dead letters without a run."),
    "dramatiq_idem_unprotected_runs_total": Metric("Counter", "Runs without a claim, by why.", ("actor", "reason")),
    "dramatiq_idem_node_failures_total": Metric("Counter", "Times that a process lost a node.", ("node",)),
    "dramatiq_idem_node_recoveries_total": Metric("Counter", "Times that a process found it again.", ("node",)),
    "dramatiq_idem_node_down": Metric("Gauge", "Processes whose last word from the node is a failure.", ("node",)),
    "dramatiq_idem_node_seconds": Metric(
        "Histogram", "A node's usual time to reply, every 5 s and process.", ("node",)
    ),
    "dramatiq_idem_node_admissions_total": Metric("Counter", "Nodes admitted to vote, by why.", ("node", "reason")),
    "dramatiq_idem_node_repairs_total": Metric("Counter", "Repairs of nodes that had forgotten records.", ("node",)),
    "dramatiq_idem_records_repaired_total": Metric("Counter", "Records that repairs brought back.", ("node",)),
    "dramatiq_idem_records_forgotten_total": Metric("Counter", "Times that too many nodes had forgotten.", ()),
    "redlock_leases_lost_total": Metric("Counter", "Leases of locks lost while they were held.", ()),
}


class Measurement(NamedTuple):
    """One change of one metric: a counter grows by `amount`, a histogram observes it, a gauge is set to it."""

    metric: str
    labels: tuple[str, ...]
    amount: float


class _Rule(NamedTuple):
    """What an event does to a metric; labels are None where it does nothing."""

    metric: str
    labels: Callable[[Any], tuple[str, ...] | None] = lambda e: (e.actor,)
    amount: Callable[[Any], float] = lambda _: 1.0


def _claims(outcome: Callable[[Any], str | None]) -> _Rule:
    return _Rule("dramatiq_idem_claims_total", lambda e: (e.actor, found) if (found := outcome(e)) else None)


def _by_node(metric: str, amount: Callable[[Any], float] = lambda _: 1.0) -> _Rule:
    return _Rule(metric, lambda e: (e.node,), amount)


_OF_UNPROTECTED = {"done": "completed", "unavailable": "unavailable"}

_RULES: dict[type[Event], tuple[_Rule, ...]] = {
    events.Claimed: (
        _claims(lambda _: "granted"),
        _Rule("dramatiq_idem_claim_seconds", amount=lambda e: e.seconds),
        _Rule("dramatiq_idem_takeovers_total", amount=lambda e: bool(e.takeovers)),
    ),
    events.Completed: (_Rule("dramatiq_idem_completion_seconds", amount=lambda e: e.seconds),),
    events.CompletionUnrecorded: (_Rule("dramatiq_idem_completions_unrecorded_total"),),
    events.DeadLettered: (_Rule("dramatiq_idem_dead_letters_total"), _claims(lambda _: "refused")),
    events.Deferred: (
        _Rule("dramatiq_idem_deferrals_total", lambda e: (e.actor, e.reason)),
        _claims(lambda e: e.reason),
    ),
    events.DoubleRun: (_Rule("dramatiq_idem_double_runs_total"),),
    events.Forgotten: (_Rule("dramatiq_idem_forgotten_total"),),
    events.GivenUp: (_Rule("dramatiq_idem_given_up_total", lambda e: (e.actor, e.state)),),
    events.LeaseLost: (_Rule("dramatiq_idem_leases_lost_total"),),
    events.NodeRepaired: (
        _by_node("dramatiq_idem_node_repairs_total"),
        _by_node("dramatiq_idem_records_repaired_total", lambda e: e.records),
    ),
    events.RecordsForgotten: (_Rule("dramatiq_idem_records_forgotten_total", lambda _: ()),),
    events.Renewed: (_Rule("dramatiq_idem_lease_renewals_total"),),
    events.Replayed: (
        _Rule("dramatiq_idem_duplicates_total", lambda e: (e.actor, "replayed", "completed")),
        _claims(lambda _: "completed"),
    ),
    events.Skipped: (
        _Rule("dramatiq_idem_duplicates_total", lambda e: (e.actor, "skipped", e.reason)),
        _claims(lambda e: "busy" if e.reason == "busy" else "completed"),
    ),
    events.Unprotected: (
        _Rule("dramatiq_idem_unprotected_runs_total", lambda e: (e.actor, e.reason)),
        _claims(lambda e: _OF_UNPROTECTED.get(e.reason)),  # without a key nothing was claimed
    ),
    redlock.Admitted: (_Rule("dramatiq_idem_node_admissions_total", lambda e: (e.node, e.reason)),),
    redlock.LeaseLost: (_Rule("redlock_leases_lost_total", lambda _: ()),),
    redlock.NodeDown: (_by_node("dramatiq_idem_node_failures_total"), _by_node("dramatiq_idem_node_down")),
    redlock.NodeTimed: (_by_node("dramatiq_idem_node_seconds", lambda e: e.seconds),),
    redlock.NodeUp: (
        _by_node("dramatiq_idem_node_recoveries_total"),
        _by_node("dramatiq_idem_node_down", lambda _: 0.0),
    ),
}


def measure(event: Event) -> list[Measurement]:
    """Return what an event counts for; nothing if its kind is not known."""
    found = ((rule.metric, rule.labels(event), rule.amount(event)) for rule in _RULES.get(type(event), ()))
    return [Measurement(metric, labels, amount) for metric, labels, amount in found if labels is not None]


def combine(*observers: Observer) -> Observer:
    """Return an observer that tells all of these, in order; what one raises is logged and keeps no other from it."""

    def tell_all(event: Event) -> None:
        for observer in observers:
            notify(observer, event)

    return tell_all


class _Book:
    """The metrics of this process. One for all observers: files have one place for a number, the last writer wins."""

    def __init__(self) -> None:
        import prometheus_client
        from prometheus_client import values

        if os.environ.get(_DIRECTORY) and not getattr(values.ValueClass, "_multiprocess", True):
            _logger.warning(
                "prometheus_client was imported before %s was set, so this process's metrics reach no endpoint: import "
                "it where it is used, not at the top of a module",
                _DIRECTORY,
            )
        self.registry = prometheus_client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        self._actors: set[str] = set()
        more: dict[str, Any] = {"Histogram": {"buckets": _BUCKETS}, "Gauge": {"multiprocess_mode": "livesum"}}
        for name, (kind, text, labels) in METRICS.items():
            make = getattr(prometheus_client, kind)
            self._metrics[name] = make(name, text, labels, registry=self.registry, **more.get(kind, {}))

    def enter(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, events.MessageEvent) and event.actor not in self._actors:
            self._begin(event.actor)
        for name, labels, amount in measure(event):
            metric = self._metrics[name].labels(*labels) if labels else self._metrics[name]
            getattr(metric, _VERBS[METRICS[name].kind])(amount)

    def _begin(self, actor: str) -> None:
        """Let an actor's counters exist from its first message on: a rate misses what a counter was born with."""
        self._actors.add(actor)
        for name, metric in METRICS.items():
            if metric.labels == ("actor",):
                self._metrics[name].labels(actor)


_mutex = threading.Lock()
_book: _Book | None = None


def _opened() -> _Book:
    global _book  # noqa: PLW0603 - the metrics of a process are one
    with _mutex:
        if _book is None:
            _book = _Book()
        return _book


class PrometheusObserver:
    """Counts events; give it as `observer` to `Idempotency`, and to `Redlock` if you like. All share their numbers.

    With Dramatiq's Prometheus middleware in the broker's chain the metrics appear at its address, summed over the
    worker processes. Elsewhere serve `registry`.

    Raises:
        redlock.SettingsError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("prometheus_client") is None:  # found, not imported
            raise SettingsError("prometheus_client is not installed; try: pip install 'dramatiq-idem[prometheus]'")
        self._early: deque[Event] = deque(maxlen=_MOST_EARLY)

    def __call__(self, event: Event) -> None:
        """Count an event, or keep it if it is too early to import prometheus_client."""
        self._early.append(event)
        if _book is not None or _DIRECTORY in os.environ or isinstance(event, events.MessageEvent):
            self._count()

    @property
    def registry(self) -> Any:
        """The CollectorRegistry that has the metrics; not to be read in a Dramatiq worker before it has booted."""
        return self._count().registry

    def _count(self) -> _Book:
        book = _opened()
        while True:
            try:
                event = self._early.popleft()
            except IndexError:
                return book
            book.enter(event)
