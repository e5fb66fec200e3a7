"""Where the middleware goes in the chain, and which chains a worker refuses to boot with."""

from __future__ import annotations

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AgeLimit, Middleware, Retries, TimeLimit
from dramatiq.middleware.prometheus import Prometheus
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from dramatiq_idem import Idempotency, MemoryStore, OptionError, PlacementError
from dramatiq_idem.placement import arranged, check_placement
from redlock import SettingsError

NOWHERE = "redis://127.0.0.1:1"


class Watcher(Middleware):
    """Only watches, says its user."""


class Actor(Middleware):
    """Does more than watch."""


def foreign(module):
    """Return a middleware that claims to come from a module of another package."""
    return type("SomeMiddleware", (Middleware,), {"__module__": module})()


def idempotency(**options):
    return Idempotency([NOWHERE], **options)


def chain_of(broker):
    return [type(middleware).__name__ for middleware in broker.middleware]


# -- place


@pytest.mark.parametrize(
    ("chain", "index"),
    [
        ([], 0),
        ([AgeLimit()], 0),
        ([Prometheus(), AgeLimit()], 1),
        ([Prometheus()], 1),
        ([foreign("sentry_sdk.integrations.dramatiq"), Prometheus(), Retries()], 2),
        ([foreign("opentelemetry.instrumentation.dramatiq"), Retries()], 1),
        ([foreign("ddtrace"), foreign("elasticapm.contrib.x"), Retries()], 2),
        ([foreign("ddtraceable"), Retries()], 0),
        ([Retries(), Prometheus()], 1),
        ([Watcher(), Retries()], 1),
        ([Actor(), Retries()], 0),
    ],
)
def test_position_is_behind_pure_observers_only(chain, index):
    """An unknown middleware may act, so it goes behind; the user can name those that only watch."""
    ours = Idempotency(store=MemoryStore())
    found = arranged(ours, chain, [Watcher])
    assert found.index(ours) == index
    assert [each for each in found[:index] if each in chain] == [each for each in chain if each in found[:index]]


def test_install_puts_it_in_front_of_all_that_act():
    """Behind Prometheus, which would otherwise count skipped messages as still running."""
    broker = StubBroker()
    broker.add_middleware(Prometheus(), before=AgeLimit)
    broker.add_middleware(Results(backend=StubBackend()))
    middleware = idempotency().install(broker)
    assert chain_of(broker)[:3] == ["Prometheus", "Idempotency", "AgeLimit"]
    assert chain_of(broker).count("Idempotency") == 1
    assert check_placement(middleware, broker, (), ()) == []


def test_install_knows_named_observers():
    """`observers` names classes, also for the check at boot."""
    broker = StubBroker()
    broker.middleware.insert(0, Watcher())
    middleware = idempotency(observers=[Watcher]).install(broker)
    assert chain_of(broker)[:2] == ["Watcher", "Idempotency"]
    middleware.before_worker_boot(broker, None)


def test_actors_declared_before_and_after_get_their_options():
    """`install` makes the actor options known, and judges those of earlier actors."""
    broker = StubBroker()
    early = dramatiq.actor(lambda: None, actor_name="early", broker=broker)
    idempotency().install(broker)
    late = dramatiq.actor(lambda x: None, actor_name="late", broker=broker, idempotency_key="job:{x}")
    assert early.options == {}
    assert late.options["idempotency_key"] == "job:{x}"


# -- what a worker refuses


def appended(broker):
    middleware = idempotency()
    broker.add_middleware(middleware)
    return middleware


def behind_one(broker):
    broker.middleware.insert(0, Actor())
    middleware = idempotency()
    broker.middleware.insert(1, middleware)
    return middleware


def in_front_of_an_observer(broker):
    middleware = idempotency().install(broker)
    broker.add_middleware(Prometheus(), after=Idempotency)
    return middleware


def twice(broker):
    middleware = idempotency().install(broker)
    broker.middleware.insert(0, idempotency())
    return middleware


@pytest.mark.parametrize(
    ("build", "rule", "said"),
    [
        (appended, "order", ["AgeLimit must stand behind Idempotency", "Retries must", "install(broker)"]),
        (behind_one, "order", ["Actor must stand behind Idempotency"]),
        (in_front_of_an_observer, "order", ["Prometheus must stand in front of Idempotency"]),
        (twice, "twice", ["Idempotency is in the chain twice"]),
    ],
)
def test_wrong_chain_is_refused_unless_its_rule_is_lowered(build, rule, said):
    """MI3: the reason names what stands wrong, how to mend it, and the rule to lower; nothing else lowers it."""
    broker = StubBroker()
    middleware = build(broker)
    with pytest.raises(PlacementError) as error:
        check_placement(middleware, broker, (), {"order", "twice", "confirms"} - {rule})
    for words in (*said, repr(rule)):
        assert words in str(error.value)
    warnings = check_placement(middleware, broker, (), {rule})
    assert len(warnings) == 1
    assert said[0] in warnings[0]


def test_all_wrongs_are_told_at_once():
    """One boot is enough to learn of everything."""
    broker = StubBroker()
    middleware = appended(broker)
    broker.middleware.append(idempotency())
    with pytest.raises(PlacementError, match=r"order.*twice|twice.*order"):
        check_placement(middleware, broker, (), ())
    with pytest.raises(PlacementError, match="twice"):
        check_placement(middleware, broker, (), ("order",))


@pytest.mark.parametrize(("confirms", "is_refused"), [(False, True), (True, False)])
def test_rabbitmq_must_confirm(confirms, is_refused):
    """A deferred copy that the broker never confirmed could vanish, and its original with it."""
    broker = RabbitmqBroker(host="127.0.0.1", port=1, confirm_delivery=confirms)
    middleware = idempotency().install(broker)
    if is_refused:
        with pytest.raises(PlacementError, match=r"confirm_delivery=True.*'confirms'"):
            check_placement(middleware, broker, (), ())
    else:
        assert check_placement(middleware, broker, (), ()) == []
    warnings = check_placement(middleware, broker, (), ("confirms",))
    assert len(warnings) == is_refused


def test_missing_retries_is_a_warning():
    """Dramatiq drops a message whose body raises; that is the user's choice, and said."""
    broker = RedisBroker(url=NOWHERE, middleware=[TimeLimit()])
    middleware = idempotency().install(broker)
    (warning,) = check_placement(middleware, broker, (), ())
    assert "Retries" in warning
    broker.client.close()


def test_lowered_rule_is_logged_at_boot(caplog):
    """Whoever lowered it is reminded at every boot."""
    broker = StubBroker()
    middleware = idempotency(tolerate=["order"])
    broker.add_middleware(middleware)
    middleware.before_worker_boot(broker, None)
    assert "AgeLimit must stand behind" in caplog.text


def test_unknown_rule_is_refused():
    """A misspelt rule would lower nothing, and nobody would know."""
    with pytest.raises(OptionError, match="odrer"):
        idempotency(tolerate=["odrer"])


@pytest.mark.parametrize("arguments", [{}, {"nodes": [NOWHERE], "store": object()}, {"nodes": []}])
def test_nodes_or_a_store_are_needed(arguments):
    """Neither, or both, can never work."""
    with pytest.raises(SettingsError):
        Idempotency(**arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"leese": 1000},
        {"lease": 0},
        {"lease": 31_000},
        {"retention": "1d"},
        {"key": ""},
        {"key": "payload"},
        {"idempotent": 1},
        {"scope": "namespace"},
    ],
    ids=str,
)
def test_bad_option_is_refused_at_construction(options):
    """MI4: unknown, out of range, contradictory or misplaced: nothing is ignored."""
    with pytest.raises(OptionError):
        idempotency(**options)


@pytest.mark.parametrize("options", [{"write_quorum": 0}, {"node_timeout": 0}, {"namespace": ""}, {"max_ttl": -1}])
def test_bad_store_option_is_refused_at_construction(options):
    """Those of the store are redlock's to refuse, before anything is sent."""
    with pytest.raises(SettingsError):
        idempotency(**options)
