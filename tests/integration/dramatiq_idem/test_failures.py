"""`on_failed="replay"`: a failure for good is remembered, and a duplicate gets it without a run."""

from __future__ import annotations

import time

import pytest
import redis
from dramatiq.results.errors import ResultFailure

from dramatiq_idem import events
from tests.tools.workbench import wait_until

REPLAY = {"idempotency_key": "job:{x}", "idempotency_on_failed": "replay", "max_retries": 0}


def failing(bench, text="no money left", failures=99, d=0.0, **options):
    """Declare an actor whose first runs raise."""
    left = list(range(failures))

    def job(x=None):
        with bench.logged(x):
            time.sleep(d)
            if left:
                left.pop()
                raise LookupError(text)
        return 42

    return bench.actor(job, **REPLAY | {"min_backoff": 1, "max_backoff": 1} | options)


def failure(bench, message):
    """Return the type name and the text with which a message failed."""
    with pytest.raises(ResultFailure) as error:
        bench.result(message)
    return error.value.orig_exc_type, error.value.orig_exc_msg


def dead(bench, number):
    wait_until(lambda: bench.dead_letters == number)
    bench.join()


def test_duplicate_of_a_failed_message_gets_the_same_failure(bench):
    """MG6: one run; type and message of the stored failure are the first one's, and the first one's stays."""
    bench = bench()
    job = failing(bench)
    bench.start()
    first = job.send("a")
    expected = ("LookupError", "no money left")
    assert failure(bench, first) == expected
    dead(bench, 1)
    before = bench.records()
    assert {record.tail for record in before} == {'["LookupError","no money left"]'}
    second = job.send("a")
    assert failure(bench, second) == expected
    dead(bench, 2)
    assert (bench.starts(), failure(bench, first)) == (1, expected)
    assert bench.records() == before
    (told,) = bench.told("DeadLettered")
    assert told.message_id == second.message_id
    assert first.message_id in told.reason
    assert "LookupError: no money left" in told.reason
    assert bench.told("Skipped") == bench.told("Deferred") == []


def test_failure_counts_once_the_retries_are_used_up(bench):
    """MG6: a retry is no duplicate; three runs, then none."""
    bench = bench()
    job = failing(bench, max_retries=2)
    bench.start()
    job.send("a")
    dead(bench, 1)
    assert bench.starts() == 3
    assert failure(bench, job.send("a")) == ("LookupError", "no money left")
    dead(bench, 2)
    assert bench.starts() == 3
    assert [event.state for event in bench.told("GivenUp")] == ["free", "free", "failed"]


def test_duplicate_that_waits_for_the_first_gets_its_failure(bench):
    """MG6: it was deferred while the first ran."""
    bench = bench()
    job = failing(bench, d=0.5)
    bench.start()
    job.send("a")
    wait_until(bench.starts)
    assert failure(bench, job.send("a")) == ("LookupError", "no money left")
    assert bench.starts() == 1
    assert {event.reason for event in bench.told("Deferred")} == {"busy"}


def test_redelivery_of_the_failed_message_itself_does_not_run(bench):
    """MG6: as after a worker that died between the failure and its dead letter."""
    bench = bench()
    job = failing(bench)
    bench.start()
    first = job.send("a")
    dead(bench, 1)
    bench.broker.enqueue(first.copy())
    dead(bench, 2) if bench.broker.__class__.__name__ == "StubBroker" else wait_until(
        lambda: bench.told("DeadLettered")
    )
    assert bench.starts() == 1
    assert failure(bench, first) == ("LookupError", "no money left")


def test_failure_without_stored_results_is_told(stub):
    """MG6: nobody reads a result then; the event says what failed, and that it was not run."""
    bench = stub()
    job = failing(bench, store_results=False)
    bench.start()
    for number in (1, 2):
        job.send("a")
        dead(bench, number)
    assert bench.starts() == 1
    (told,) = bench.told("DeadLettered")
    assert isinstance(told, events.DeadLettered)
    assert "LookupError: no money left" in told.reason


def test_failure_is_remembered_for_the_retention(stub):
    """Counted from the failure; duplicates do not lengthen it."""
    bench = stub(lease=400)
    job = failing(bench, failures=1, idempotency_retention=1_500)
    bench.start()
    job.send("a")
    (failed,) = wait_until(lambda: bench.told("GivenUp")) and [time.monotonic()]
    time.sleep(0.7)
    failure(bench, job.send("a"))
    assert bench.starts() == 1
    time.sleep(max(0.0, failed + 1.7 - time.monotonic()))
    assert bench.result(job.send("a")) == 42
    assert bench.starts() == 2


@pytest.mark.parametrize("way", ["option", "forget"])
def test_failed_key_is_run_again_on_a_persons_word(stub, way):
    """By an option of the message, or by forgetting the key; what is completed then stands."""
    bench = stub()
    job = failing(bench, failures=1)
    bench.start()
    job.send("a")
    dead(bench, 1)
    options = {"idempotency_on_failed": "run"} if way == "option" else {}
    if way == "forget":
        bench.store.forget("job:job:a", 60_000)
    assert bench.result(job.send_with_options(args=("a",), **options)) == 42
    assert bench.result(job.send("a")) == 42
    assert bench.starts() == 2
    assert bench.states() == {"done"}


def test_failure_that_one_node_remembers_is_enough(stub, shared):
    """The others were away when it was recorded, or forgot it."""
    bench = stub()
    job = failing(bench)
    bench.start()
    job.send("a")
    dead(bench, 1)
    wait_until(lambda: bench.states() == {"failed"})
    for node in shared[:2]:
        with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
            client.delete("idem:record:job:job:a")
    assert failure(bench, job.send("a")) == ("LookupError", "no money left")
    assert bench.starts() == 1
    assert sorted(record.state.value if record else "none" for record in bench.records()) == ["failed", "none", "none"]


def test_failed_key_with_other_arguments_is_refused(stub):
    """It is not that one's failure, either."""
    bench = stub()

    def pay(order, amount):
        with bench.logged(amount):
            raise LookupError("no money left")

    pay = bench.actor(pay, **REPLAY | {"idempotency_key": "order:{order}"})
    bench.start()
    pay.send("K", 5)
    dead(bench, 1)
    assert failure(bench, pay.send("K", 6))[0] == "KeyReusedError"
    assert (bench.starts(5), bench.starts(6)) == (1, 0)


def test_long_text_is_cut_where_results_are(stub):
    """`max_result_bytes` bounds what is kept of a failure, too."""
    bench = stub(max_result_bytes=200)
    job = failing(bench, text="x" * 5_000)
    bench.start()
    job.send("a")
    dead(bench, 1)
    assert all(len(record.tail) <= 200 for record in bench.records())
    name, text = failure(bench, job.send("a"))
    assert (name, text[:100], text[-1]) == ("LookupError", "x" * 100, "…")


@pytest.mark.parametrize("tail", ["", '["__import__(\'os\').abort()","text"]', "c__builtin__\neval\n(S'1'\ntR."])
def test_what_stands_on_the_nodes_is_never_executed(stub, shared, tail):
    """A reason that nobody gave runs again; one that is none of ours is a text like others."""
    bench = stub()
    job = failing(bench, failures=0)
    for node in shared:
        with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
            client.set("idem:record:job:job:a", f"failed 0 7 - 0 0 - m1 {tail}".rstrip(" "), px=60_000)
    bench.start()
    message = job.send("a")
    if not tail:
        assert bench.result(message) == 42
        return
    assert failure(bench, message)[0] in ("Exception", "TakeoversExhaustedError")
    assert bench.starts() == 0


def test_default_is_to_run_again_and_to_keep_nothing(stub):
    """The text of an exception may be nobody's business: it is kept only where it is asked for."""
    bench = stub()
    job = failing(bench, failures=1, idempotency_on_failed="run")
    bench.start()
    job.send("a")
    dead(bench, 1)
    assert {(record.state.value, record.tail) for record in bench.records()} == {("failed", "")}
    assert bench.result(job.send("a")) == 42
    assert bench.starts() == 2


def test_result_of_a_run_that_died_behind_it_stays(bench, shared):
    """Promise 4: 42 was stored, then takeovers were used up; the duplicate's failure must not go over it."""
    bench = bench()
    job = failing(bench, failures=0)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    bench.join()
    wait_until(lambda: bench.states() == {"done"})
    for node in shared:
        with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
            client.set("idem:record:job:job:a", "failed 0 7 - 0 0 - m1 6 runs ended with their lease", px=60_000)
    bench.broker.enqueue(message.copy())
    wait_until(lambda: bench.told("DeadLettered"))
    bench.join()
    assert bench.result(message) == 42
    assert bench.starts() == 1
