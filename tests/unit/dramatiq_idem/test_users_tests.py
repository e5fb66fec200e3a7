"""The way users test their own actors: `StubBroker`, `MemoryStore`, a worker, no servers."""

from __future__ import annotations

import time

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from dramatiq_idem import Idempotency, KeyReusedError, MemoryStore, current_run


@pytest.fixture
def broker(monkeypatch):
    """A broker in memory, with the middleware and results; the default one, as in an application."""
    broker = StubBroker()
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)
    broker.add_middleware(Results(backend=StubBackend()))
    broker.add_middleware(GroupCallbacks(StubLimits()))
    Idempotency(store=MemoryStore()).install(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def worker(broker):
    """A worker on it."""
    worker = Worker(broker, worker_timeout=20, worker_threads=4)
    worker.start()
    yield worker
    worker.stop()


def join(broker, worker, **options):
    broker.join("default", timeout=10_000, **options)
    worker.join()


def test_redelivered_message_runs_once(broker, worker):
    """Its result stays."""
    runs = []

    @dramatiq.actor(broker=broker, store_results=True)
    def job(x):
        runs.append((x, current_run().key))
        return 42

    message = job.send(1)
    for _ in range(3):
        broker.enqueue(message.copy())
    join(broker, worker)
    assert runs == [(1, message.message_id)]
    assert message.get_result() == 42


def test_busy_copy_comes_back_and_gets_the_result(broker, worker):
    """`join` waits for it."""
    runs = []

    @dramatiq.actor(broker=broker, store_results=True, idempotency_key="job:{x}")
    def job(x):
        runs.append(x)
        time.sleep(0.3)
        return {"x": x}

    messages = [job.send(1) for _ in range(4)]
    join(broker, worker)
    assert runs == [1]
    assert [message.get_result() for message in messages] == [{"x": 1}] * 4


def test_body_that_raises_is_retried_and_raised_by_join(broker, worker):
    """`fail_fast` shows the body's own error, as without the middleware."""
    runs = []

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=1)
    def job():
        runs.append(1)
        raise KeyError("mine")

    job.send()
    with pytest.raises(KeyError, match="mine"):
        join(broker, worker, fail_fast=True)
    assert len(runs) == 2


def test_reused_key_is_raised_by_join(broker, worker):
    """A mistake of the user's: it fails his test."""

    @dramatiq.actor(broker=broker, idempotency_key="job:{x}")
    def job(x, amount):
        pass

    job.send(1, 5)
    join(broker, worker)
    job.send(1, 6)
    with pytest.raises(KeyReusedError):
        join(broker, worker, fail_fast=True)


def test_group_and_pipeline_work(broker, worker):
    """With equal payloads in them."""
    calls = []

    @dramatiq.actor(broker=broker, store_results=True, idempotency_key="payload", idempotency_retention=60_000)
    def double(x):
        calls.append(x)
        return 2 * x

    @dramatiq.actor(broker=broker, store_results=True)
    def done():
        calls.append("done")

    group = dramatiq.group([double.message(1), double.message(1), double.message(2)], broker=broker)
    group.add_completion_callback(done.message())
    group.run()
    assert sorted(group.get_results(block=True, timeout=5_000)) == [2, 2, 4]
    pipe = (double.message(1) | double.message()).run()
    assert pipe.get_result(block=True, timeout=5_000) == 4
    join(broker, worker)
    assert sorted(calls, key=str) == [1, 2, "done"]


def test_fencing_token_grows_between_runs(broker, worker):
    """As on real nodes."""
    tokens = []

    @dramatiq.actor(broker=broker, idempotency_key="job:{x}", max_retries=3, min_backoff=1, max_backoff=1)
    def job(x):
        tokens.append(current_run().fencing_token)
        if len(tokens) < 3:
            raise ValueError

    job.send(1)
    join(broker, worker, fail_fast=False)
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))


def test_key_that_is_forgotten_runs_again(broker, worker):
    """By its store."""
    store = next(each for each in broker.middleware if isinstance(each, Idempotency))._store
    runs = []

    @dramatiq.actor(broker=broker, idempotency_key="job:{x}")
    def job(x):
        runs.append(x)

    for _ in range(2):
        job.send(1)
        join(broker, worker)
    assert runs == [1]
    store.forget("job:job:1", 60_000)
    job.send(1)
    join(broker, worker)
    assert runs == [1, 1]


def test_nothing_is_shared_between_two_stores():
    """Each test starts empty."""
    runs = []

    def count(x):
        runs.append(x)

    for _ in range(2):
        broker = StubBroker()
        Idempotency(store=MemoryStore()).install(broker)
        dramatiq.actor(count, actor_name="job", broker=broker, idempotency_key="job:{x}").send(1)
        worker = Worker(broker, worker_timeout=20, worker_threads=1)
        worker.start()
        join(broker, worker)
        worker.stop()
        broker.close()
    assert runs == [1, 1]


def test_one_function_in_two_brokers():
    """Suites declare their actors anew: the function is wrapped for each, and protected in each."""
    runs = []

    def work(x):
        runs.append(x)

    for _ in range(2):
        broker = StubBroker()
        Idempotency(store=MemoryStore()).install(broker)
        job = dramatiq.actor(work, actor_name="job", broker=broker, idempotency_key="job:{x}")
        worker = Worker(broker, worker_timeout=20, worker_threads=1)
        worker.start()
        job.send(1)
        job.send(1)
        join(broker, worker)
        worker.stop()
        broker.close()
    assert runs == [1, 1]


def test_function_of_a_protected_actor_under_a_second_name(broker, worker):
    """`actor.fn` declared again: a duplicate of the second actor does not run its body either."""
    runs = []

    @dramatiq.actor(broker=broker, store_results=True, idempotency_key="job:{x}")
    def fast(x):
        runs.append(x)
        return x

    slow = dramatiq.actor(fast.fn, actor_name="slow", broker=broker, store_results=True, idempotency_key="slow:{x}")
    for _ in range(2):
        slow.send(1)
        join(broker, worker)
    assert runs == [1]
