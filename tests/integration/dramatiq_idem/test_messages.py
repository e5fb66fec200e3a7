"""Messages through real workers' threads, on real nodes; the broker is in memory, or a Redis."""

from __future__ import annotations

import threading
import time
from collections import Counter

import dramatiq
import pytest
from dramatiq.middleware import Middleware, SkipMessage, TimeLimit
from dramatiq.results.errors import ResultFailure

from dramatiq_idem import current_run
from tests.tools.fault_proxy import FaultProxy
from tests.tools.workbench import wait_until

# -- duplicates


def test_duplicate_of_one_id_runs_once(bench):
    """Promise 3: whatever the broker delivers twice has one completed run."""
    bench = bench()
    job = bench.job()
    message = bench.twice(job.message("a"))
    bench.start()
    bench.join()
    assert bench.starts() == 1
    assert bench.result(message) == 42
    assert bench.states() == {"done"}
    assert bench.dead_letters == 0


def test_duplicate_under_another_id_runs_once(bench):
    """The payload makes it the same job; the body does not run again."""
    bench = bench()
    job = bench.job(idempotency_key="payload", idempotency_retention=60_000)
    messages = [job.send("a"), job.send(x="a"), job.send("b")]
    bench.start()
    bench.join()
    assert Counter(bench.log.entries) == Counter([("start", k) for k in "ab"] + [("end", k) for k in "ab"])
    assert 42 in [bench.result(message) for message in messages[:2] if bench.has_result(message)]


def test_result_never_changes(bench):
    """MF1: a skipped redelivery would store None over it."""
    bench = bench()
    job = bench.job()
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    for _ in range(5):
        bench.broker.enqueue(message.copy())
    seen = [bench.result(message) for _ in range(10)]
    bench.join()
    assert {*seen, bench.result(message)} == {42}
    assert bench.starts() == 1
    assert len(bench.told("Skipped")) == 5
    assert sorted(bench.spy.skipped) == [message.message_id] * 5


def test_caller_that_waits_gets_the_real_result(bench):
    """H15: a duplicate that is deferred while the first runs stores nothing."""
    bench = bench()
    job = bench.job()
    bench.start()
    message = bench.twice(job.message("a", d=0.6))
    assert bench.result(message) == 42
    bench.join()
    assert bench.result(message) == 42
    assert bench.starts() == 1
    assert {event.reason for event in bench.told("Deferred")} == {"busy"}


def test_copies_that_start_at_once_run_once(bench):
    """MD2: 200 ids, two copies each, 16 threads."""
    bench = bench(threads=16)
    job = bench.job()
    messages = [job.message(number, d=0.001 * (number % 6)) for number in range(200)]
    for message in messages:
        bench.twice(message)
    bench.start()
    bench.join()
    assert bench.starts() == 200
    assert bench.log.ends() == 200
    assert bench.log.most_at_once() == 1
    assert len({event.message_id for event in bench.told("Completed")}) == 200
    assert {bench.result(message) for message in messages[::20]} == {42}
    assert bench.dead_letters == 0


def test_many_delayed_copies_run_once(stub):
    """MB11: one delayed message that became twenty."""
    bench = stub()
    job = bench.job()
    message = job.message("a")
    for _ in range(20):
        bench.broker.enqueue(message.copy(), delay=100)
    bench.start()
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    assert len(bench.told("Skipped")) == 19


def test_job_longer_than_its_lease_keeps_it(workbench, shared, broker_url):
    """MC1: it is renewed, so duplicates at another worker meanwhile find it busy."""
    one = workbench(shared.urls, broker_url, threads=2, lease=1_000)
    two = workbench(shared.urls, broker_url, threads=2, lease=1_000)
    one.log = two.log
    message = one.job().message("a", d=3.0)
    two.job()
    one.start()
    one.broker.enqueue(message)
    wait_until(one.log.starts)
    two.start()
    while not two.log.ends():
        two.broker.enqueue(message.copy())
        time.sleep(0.3)
    two.join()
    assert two.log.starts() == 1
    assert [*one.told("LeaseLost"), *two.told("LeaseLost")] == []
    assert one.told("Deferred") or two.told("Deferred")
    assert one.result(message) == 42


# -- retries


@pytest.fixture
def slow_third(shared):
    """URLs of the shared nodes, the third one 0.3 s away."""
    with FaultProxy("127.0.0.1", shared[2].port) as proxy:
        proxy.set("delay", 0.3, 0.0)
        yield [*shared.urls[:2], proxy.url]


def flaky(bench, failures, error=ValueError, out=7, **options):
    """Declare an actor whose first runs raise."""
    left = list(range(failures))

    def job(x=None):
        with bench.logged(x):
            if left:
                left.pop()
                raise error() if isinstance(error, type) else error
        return out

    return bench.actor(job, **{"min_backoff": 1, "max_backoff": 1, "max_retries": 3} | options)


def test_quick_retry_is_no_duplicate_of_itself(workbench, slow_third):
    """MA1: though giving the claim up takes a while on one node."""
    bench = workbench(slow_third)
    job = flaky(bench, 2)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 7
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (3, 0)
    assert bench.states() == {"done"}


def test_retry_is_not_blocked_by_the_lease_of_its_own_attempt(bench):
    """MD5: the claim is given up with the error, so the next attempt is never busy."""
    bench = bench(lease=30_000)
    job = flaky(bench, 1, min_backoff=100, max_backoff=100)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 7
    bench.join()
    assert bench.starts() == 2
    assert bench.told("Deferred") == []
    assert [event.takeovers for event in bench.told("Claimed")] == [0, 0]


def test_redelivery_that_the_body_asks_for_runs(bench):
    """MA7: `Retry` is no completion."""
    bench = bench()
    job = flaky(bench, 1, dramatiq.errors.Retry("later", delay=200))
    bench.start()
    message = job.send("a")
    wait_until(lambda: bench.told("GivenUp"))
    assert bench.states() == {"free"}
    assert bench.result(message) == 7
    bench.join()
    assert bench.starts() == 2
    assert bench.states() == {"done"}


def test_duplicate_outlives_the_first_ones_failure(bench):
    """MA3: it is put back while the first runs, and runs once that has failed."""
    bench = bench()

    def job(x):
        with bench.logged(x):
            if current_run().takeovers == 0 and bench.starts() == 1:
                time.sleep(0.7)
                raise ValueError
        return 42

    job = bench.actor(job, idempotency_key="payload", idempotency_retention=60_000, max_retries=0)
    bench.start()
    first = job.send(1)
    wait_until(bench.starts)
    second = job.send(1)
    assert bench.result(second) == 42
    bench.join()
    assert bench.starts() == 2
    assert bench.log.most_at_once() == 1
    assert bench.dead_letters == 1
    with pytest.raises(ResultFailure):
        bench.result(first)
    assert {(record.state.value, record.message_id) for record in bench.records()} == {("done", second.message_id)}


def test_being_busy_spends_no_retry(bench):
    """MA4: with none to spend, a busy message still comes back until the first is done."""
    bench = bench()
    job = bench.job(idempotency_key="payload", idempotency_retention=60_000, max_retries=0)
    bench.start()
    first = job.send("a", d=2.0)
    wait_until(bench.starts)
    second = job.send("a", d=2.0)
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    assert bench.result(first) == 42
    assert len(bench.told("Deferred")) >= 2
    copies = [message for message in bench.spy.enqueued if message.message_id == second.message_id]
    assert len(copies) > 2
    assert {message.options.get("retries", 0) for message in copies} == {0}


def test_key_whose_retries_are_exhausted_blocks_nothing(stub):
    """MG1: failed is for people to see; the same job sent again runs at once."""
    bench = stub()
    job = flaky(bench, 2, max_retries=1, idempotency_key="payload", idempotency_retention=60_000)
    bench.start()
    job.send("a")
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (2, 1)
    assert bench.states() == {"failed"}
    message = job.send("a")
    assert bench.result(message) == 7
    assert [event for event in bench.told("Deferred") if event.message_id == message.message_id] == []


# -- other middleware


def test_late_redelivery_is_not_failed_by_the_age_limit(bench):
    """MF10: we stand in front of it, or 42 would become an exception."""
    bench = bench()
    job = bench.job(max_age=60_000)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    bench.broker.enqueue(message.copy(message_timestamp=message.message_timestamp - 3_600_000))
    bench.join()
    wait_until(lambda: bench.told("Skipped"))
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    assert bench.result(message) == 42


def test_message_that_is_too_old_gives_its_claim_up(stub):
    """H17: AgeLimit fails it behind us; nothing stays claimed, and nothing is recorded as done."""
    bench = stub()
    job = bench.job(max_age=1)
    message = job.message("a")
    bench.broker.enqueue(message.copy(message_timestamp=message.message_timestamp - 3_600_000))
    bench.start()
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (0, 1)
    assert bench.states() == {"failed"}


def test_success_callback_is_called_once(bench):
    """MF11: a redelivery has no success of its own."""
    bench = bench()
    done = bench.actor(lambda data, result: bench.log.add("start", "callback"), actor_name="done")
    job = bench.job(on_success="done")
    bench.start()
    message = bench.twice(job.message("a"))
    bench.join()
    bench.broker.enqueue(message.copy())
    bench.join()
    assert (bench.starts("a"), bench.starts("callback")) == (1, 1)
    assert done.actor_name == "done"


class Skipper(Middleware):
    """Skips the first delivery of everything."""

    def __init__(self):
        self.skipped = set()

    def before_process_message(self, broker, message):
        if message.message_id not in self.skipped:
            self.skipped.add(message.message_id)
            raise SkipMessage("not today")


def test_skip_by_another_middleware_leaves_no_claim(bench):
    """H17: it comes behind our claim, which is given up; the next delivery runs at once."""
    bench = bench(middleware=[Skipper()], lease=30_000)
    job = bench.job()
    bench.start()
    message = job.send("a")
    bench.join()
    wait_until(lambda: bench.told("GivenUp"))
    assert bench.states() == {"free"}
    assert bench.starts() == 0
    bench.broker.enqueue(message.copy())
    bench.join()
    assert bench.starts() == 1
    assert bench.told("Deferred") == []
    assert bench.states() == {"done"}


class Failer(Middleware):
    """Fails every message without an exception."""

    def before_process_message(self, broker, message):
        message.fail()


def test_message_that_another_middleware_failed_is_not_done(bench):
    """H18: Dramatiq reports success for it, though its body never ran."""
    bench = bench(middleware=[Failer()])
    job = bench.job()
    bench.start()
    job.send("a")
    wait_until(lambda: bench.dead_letters)
    assert bench.starts() == 0
    assert bench.states() == {"failed"}
    assert bench.told("Completed") == []


# -- keys


def test_one_call_in_three_spellings_is_one_job(bench):
    """ME2: bound to the signature, defaults filled in."""
    bench = bench()

    def f(x, y=None):
        bench.log.add("start", x)

    f = bench.actor(f, idempotency_key="payload", idempotency_retention=60_000, store_results=False)
    f.send(1)
    f.send(x=1)
    f.send(1, None)
    bench.start()
    bench.join()
    assert bench.starts() == 1


def test_calls_that_look_alike_are_jobs_of_their_own(bench):
    """ME1: texts with separators in them, numbers and their texts, two arguments and one; each runs once."""
    bench = bench()

    def f(a, b=None, c=None):
        bench.log.add("start", (repr(a), repr(b), repr(c)))

    f = bench.actor(f, idempotency_key="payload", idempotency_retention=60_000, store_results=False)
    atoms = ["1", "_", "1_b-2", 1, None]
    calls = [(a, b, c) for a in atoms for b in atoms for c in atoms]
    for call in calls * 2:
        f.send(*call)
    f.send(a="1_b-2")
    f.send(a="1", b="2")
    f.send(a=1, b=2)
    bench.start()
    bench.join()
    assert Counter(bench.log.entries).most_common(1)[0][1] == 1
    assert bench.starts() == len(calls) + 2  # the first of the three is among them


def test_messages_without_a_key_are_no_duplicates_of_each_other(bench):
    """ME6: they run unprotected, and that is told."""
    bench = bench()

    def f(order_id, other):
        bench.log.add("start", other)

    f = bench.actor(f, idempotency_key="order:{order_id}", store_results=False)
    for other in range(3):
        f.send(None, other)
    bench.start()
    bench.join()
    assert bench.starts() == 3
    assert len(bench.told("Unprotected")) == 3


def test_required_key_that_is_missing_goes_to_the_dead_letters(bench):
    """ME6: `require_key` refuses them, with the reason."""
    bench = bench()
    job = bench.job(idempotency_key="order:{x}", idempotency_require_key=True)
    bench.start()
    message = job.send(None)
    wait_until(lambda: bench.dead_letters)
    assert bench.starts() == 0
    with pytest.raises(ResultFailure, match="idempotency key"):
        bench.result(message)


def test_each_actor_has_its_own_template(bench):
    """ME7: the first one's does not hold for all."""
    bench = bench()

    def by_user(user, product):
        bench.log.add("start", ("user", user, product))

    def by_product(user, product):
        bench.log.add("start", ("product", user, product))

    actors = [
        bench.actor(by_user, idempotency_key="u:{user}", store_results=False),
        bench.actor(by_product, idempotency_key="p:{product}", store_results=False),
    ]
    for actor in actors:
        actor.send(1, 2)
        actor.send(3, 4)
    bench.start()
    bench.join()
    assert bench.starts() == 4


@pytest.mark.parametrize(("scope", "starts"), [("actor", 2), ("namespace", 1)])
def test_equal_payloads_of_two_actors(stub, scope, starts):
    """ME8: two jobs, unless their scope is the namespace."""
    bench = stub()
    options = {"idempotency_key": "payload", "idempotency_retention": 60_000, "idempotency_scope": scope}
    bench.job("a", **options).send("x")
    bench.job("b", **options).send("x")
    bench.start()
    bench.join()
    assert bench.starts() == starts


def test_actor_option_holds_for_a_plain_send(bench):
    """ME10: and a message can still switch it off."""
    bench = bench()
    job = bench.job(idempotency_key="payload", idempotency_retention=60_000)
    job.send("a")
    job.send("a")
    bench.start()
    bench.join()
    assert bench.starts() == 1
    job.send_with_options(args=("a",), idempotent=False)
    bench.join()
    assert bench.starts() == 2


def test_key_on_a_message_is_shared_by_ids(stub):
    """Two messages that name the same key are the same job."""
    bench = stub()
    job = bench.job()
    for x in range(3):
        job.send_with_options(args=(x,), idempotency_key="order-7")
    bench.start()
    bench.join()
    assert bench.starts() == 1


# -- inside the body


def test_body_knows_its_key_and_the_caller_does_not(stub):
    """The run belongs to one context: neither a direct call nor an unprotected message has one."""
    bench = stub()
    seen = {}

    def pay(order):
        run = current_run()
        seen[order] = run and (run.key, run.lost, run.takeovers, run.remaining() > 0)

    pay = bench.actor(pay, idempotency_key="pay:{order}", store_results=False)
    bench.start()
    pay.send("a")
    pay.send_with_options(args=("b",), idempotent=False)
    bench.join()
    pay("c")
    assert seen == {"a": ("pay:a", False, 0, True), "b": None, "c": None}


def test_stopped_renewals_leave_no_thread_behind(workbench, shared):
    """MC5: 200 jobs, of which some raise, run out of time, ask for a retry, are too old or are skipped by others."""
    bench = workbench(shared.urls, middleware=[Skipper()], lease=900)
    (limits,) = (each for each in bench.broker.middleware if isinstance(each, TimeLimit))
    limits.after_process_boot(bench.broker)  # as the command does
    again = set()

    def job(kind, x):
        bench.log.add(kind, x)
        if kind == "error":
            raise ValueError
        if kind == "slow":
            for _ in range(500):
                time.sleep(0.01)
        if kind == "retry" and x not in again:
            again.add(x)
            raise dramatiq.errors.Retry("later", delay=10)

    def message(kind, x):
        sent = job.message(kind, x)
        return sent.copy(message_timestamp=sent.message_timestamp - 3_600_000) if kind == "old" else sent

    job = bench.actor(
        job, store_results=False, max_retries=1, min_backoff=1, max_backoff=1, time_limit=300, max_age=60_000
    )
    bench.start()
    warm = bench.broker.enqueue(message("ok", "warm"))
    bench.broker.enqueue(warm.copy())  # the first is skipped by the other middleware
    wait_until(lambda: bench.told("Completed"))
    threads = threading.active_count()
    counts = {"ok": 100, "error": 30, "slow": 10, "retry": 30, "old": 30}
    for kind, count in counts.items():
        for number in range(count):
            sent = message(kind, f"{kind}{number}")
            bench.broker.enqueue(sent)
            bench.broker.enqueue(sent.copy())
    bench.join(30.0)
    assert {kind: len({x for what, x in bench.log.entries if what == kind}) for kind in counts} == {
        **counts, "ok": 101, "old": 0,
    }  # fmt: skip
    assert len(bench.store._renewer) == 0
    assert bench.states() <= {"done", "free", "failed"}  # at once, not only when the lease is over
    assert threading.active_count() <= threads
    assert sum(thread.name == "redlock-renewer" for thread in threading.enumerate()) <= 1
