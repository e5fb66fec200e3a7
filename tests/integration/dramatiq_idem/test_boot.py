"""A worker that cannot keep the promises does not boot, and takes no message from the queue."""

from __future__ import annotations

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency, OptionError, PlacementError
from redlock import LeaseLost
from tests.tools.fault_proxy import FaultProxy
from tests.tools.workbench import wait_until


@pytest.fixture
def broker(broker_url):
    """A Redis broker with a message in its queue."""
    broker = RedisBroker(url=broker_url)
    yield broker
    broker.close()
    broker.client.close()


def assert_refuses_to_boot(broker, middleware, *words):
    """Start a worker, and see it refuse with these words and leave the queue alone."""
    ran = []
    dramatiq.actor(lambda: ran.append(1), actor_name="job", broker=broker).send()
    worker = Worker(broker, worker_timeout=50, worker_threads=1)
    with pytest.raises(PlacementError) as error:
        worker.start()
    for word in words:
        assert word in str(error.value)
    assert worker.workers == []
    assert worker.consumers == {}
    assert broker.client.llen("dramatiq:default") == 1
    assert ran == []
    middleware._store.close()
    return str(error.value)


def test_wrong_password(broker, shared, local_nodes):
    """Named with its node, and without the password."""
    (guarded,) = local_nodes(1, config={"requirepass": "right-secret"})
    url = guarded.url.replace("redis://", "redis://:wrong-secret@")
    middleware = Idempotency([*shared.urls[:2], url]).install(broker)
    said = assert_refuses_to_boot(broker, middleware, f"127.0.0.1:{guarded.port}")
    assert "secret" not in said


def test_missing_password(broker, shared, local_nodes):
    """As bad as a wrong one."""
    (guarded,) = local_nodes(1, config={"requirepass": "right-secret"})
    middleware = Idempotency([*shared.urls[:2], guarded.url]).install(broker)
    assert_refuses_to_boot(broker, middleware, f"127.0.0.1:{guarded.port}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x01\x02garbage\r\n"])
def test_something_that_is_no_redis(broker, shared, answer):
    """A web server on the port, say."""
    with FaultProxy("127.0.0.1", shared[2].port) as proxy:
        proxy.set("inject", answer)
        middleware = Idempotency([*shared.urls[:2], proxy.url]).install(broker)
        assert_refuses_to_boot(broker, middleware, proxy.url.removeprefix("redis://"), "not a Redis server")


def test_one_server_under_two_names(broker, shared):
    """A majority of one is none."""
    again = shared.urls[0].replace("127.0.0.1", "localhost")
    middleware = Idempotency([shared.urls[0], shared.urls[1], again]).install(broker)
    assert_refuses_to_boot(broker, middleware, "same server", f"localhost:{shared[0].port}")


def test_two_databases_of_one_server(broker, shared):
    """They die together."""
    middleware = Idempotency([f"{shared.urls[0]}/0", f"{shared.urls[0]}/1", shared.urls[1]]).install(broker)
    assert_refuses_to_boot(broker, middleware, "same server")


def test_middleware_that_was_appended(broker, shared):
    """MI3: behind Retries it would complete before the retry is queued; the reason says how to mend it."""
    middleware = Idempotency(shared.urls)
    broker.add_middleware(middleware)
    assert_refuses_to_boot(broker, middleware, "AgeLimit must stand behind Idempotency", "install(broker)")


def test_node_that_is_down_does_not_keep_a_worker_from_booting(workbench, shared):
    """It is no mistake of anybody's settings."""
    with FaultProxy("127.0.0.1", shared[2].port) as proxy:
        proxy.set("refuse")
        bench = workbench([*shared.urls[:2], proxy.url])
        job = bench.job()
        bench.start()
        assert bench.result(job.send(1)) == 42
        bench.join()


@pytest.mark.timeout(60)
def test_fresh_nodes_serve_after_their_wait_without_being_asked(workbench, nodes3, monkeypatch):
    """Nobody bootstrapped them: the first message waits for the longest lease, and then runs."""
    monkeypatch.setattr("dramatiq_idem.delivery._FIRST_OUTAGE_MS", 500)
    bench = workbench(nodes3.urls, max_ttl=3.0)
    job = bench.job()
    bench.start()
    assert bench.result(job.send(1), timeout=20.0) == 42
    wait_until(lambda: bench.told("Completed"))
    assert {event.reason for event in bench.told("Admitted")} == {"new"}
    assert {event.rights for event in bench.told("Admitted")} == {"records"}
    assert LeaseLost not in map(type, bench.events)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"idempotancy": True}, ValueError, "idempotancy"),
        ({"idempotency_kye": "x"}, ValueError, "idempotency_kye"),
        ({"idempotency_lease": 0}, OptionError, "idempotency_lease"),
        ({"idempotency_lease": 31_000}, OptionError, "max_ttl"),
        ({"idempotency_key": "job:{y}"}, OptionError, "no argument 'y'"),
        ({"idempotency_key": "payload"}, OptionError, "retention"),
        ({"idempotency_key": "x:{x}", "idempotent": False}, OptionError, "idempotent"),
        ({"idempotency_scope": "global"}, OptionError, "idempotency_scope"),
    ],
)
def test_bad_actor_option_is_refused_where_it_stands(options, error, said):
    """MI4: at the decorator, not at the first message, and never ignored."""
    broker = StubBroker()
    Idempotency(["redis://127.0.0.1:1"]).install(broker)
    with pytest.raises(error, match=said):
        dramatiq.actor(lambda x: None, actor_name="job", broker=broker, **options)
