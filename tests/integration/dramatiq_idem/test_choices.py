"""What a user may choose instead of the defaults: busy keys, missing quorums, lost leases; and coroutine actors."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack

import pytest
import redis
from dramatiq.middleware import AsyncIO, Middleware, TimeLimit
from dramatiq.results.errors import ResultFailure

from dramatiq_idem import current_run, entry
from dramatiq_idem.body import LeaseLostInterrupt
from tests.integration.dramatiq_idem.conftest import bootstrap, set_all, urls
from tests.tools.fault_proxy import FaultProxy
from tests.tools.workbench import wait_until

PAYLOAD = {"idempotency_key": "payload", "idempotency_retention": 60_000}


@pytest.fixture
def bench(workbench, shared):
    """Make a workbench on shared nodes with a broker in memory."""
    return lambda **options: workbench(shared.urls, **options)


def forget_records(nodes):
    for node in nodes:
        with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
            if keys := client.keys("idem:record:*"):
                client.delete(*keys)


# -- on_busy


def test_wait_in_the_worker_for_a_busy_key(bench):
    """No turn round the queue; then the first one's result."""
    bench = bench()
    job = bench.job(**PAYLOAD, idempotency_on_busy="wait")
    bench.start()
    first = job.send("a", d=0.8)
    wait_until(bench.starts)
    assert bench.result(job.send("a", d=0.8)) == 42
    assert bench.result(first) == 42
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    assert bench.told("Deferred") == []


def test_wait_for_a_busy_key_runs_it_if_the_first_fails(bench):
    """Whoever waits is no duplicate of a failure."""
    bench = bench()

    def job(x):
        with bench.logged(x):
            if bench.starts() == 1:
                time.sleep(0.5)
                raise ValueError
        return 42

    job = bench.actor(job, **PAYLOAD, idempotency_on_busy="wait", max_retries=0)
    bench.start()
    job.send("a")
    wait_until(bench.starts)
    assert bench.result(job.send("a")) == 42
    assert (bench.starts(), bench.log.most_at_once()) == (2, 1)


@pytest.mark.parametrize("why", ["patience", "stopping"])
def test_wait_for_a_busy_key_is_bounded(bench, monkeypatch, why):
    """After its longest wait, or when the worker stops, it goes back to the queue."""
    if why == "patience":
        monkeypatch.setattr(entry, "_LONGEST_WAIT", 0.4)
    bench = bench()
    job = bench.job(**PAYLOAD, idempotency_on_busy="wait")
    bench.start()
    job.send("a", d=1.5)
    wait_until(bench.starts)
    second = job.send("a", d=1.5)
    if why == "stopping":
        time.sleep(0.3)
        bench.idempotency.before_worker_shutdown(bench.broker, bench.worker)
    wait_until(lambda: bench.told("Deferred"))
    assert bench.log.ends() == 0
    assert bench.told("Deferred")[0].reason == "busy"
    assert bench.result(second) == 42
    assert bench.starts() == 1


def test_short_outage_while_a_busy_key_is_waited_for(workbench, proxied):
    """It gets the same patience as any other: the time that was waited before is not the nodes' fault."""
    bench = workbench(urls(proxied), on_busy="wait", on_unavailable="fail", lease=3_000)
    job = bench.job(**PAYLOAD)
    bench.start()
    first = job.send("a", d=4.0)
    wait_until(bench.starts)
    second = job.send("a", d=4.0)
    time.sleep(2.6)
    set_all(proxied, "refuse")
    time.sleep(0.5)
    set_all(proxied, "pass")
    assert [bench.result(message) for message in (first, second)] == [42, 42]
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)


def test_skip_what_is_busy(bench, caplog):
    """By name, and said at boot: it is gone, without a result, whatever becomes of the first."""
    bench = bench()
    job = bench.job(**PAYLOAD, idempotency_on_busy="skip")
    bench.start()
    first = job.send("a", d=0.5)
    wait_until(bench.starts)
    second = job.send("a", d=0.5)
    wait_until(lambda: bench.told("Skipped"))
    bench.join()
    assert not bench.has_result(second)
    assert bench.result(first) == 42
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    (event,) = bench.told("Skipped")
    assert (event.reason, event.other) == ("busy", first.message_id)
    warnings = [record.message for record in caplog.records if "on_busy='skip'" in record.message]
    assert len(warnings) == 1
    assert "may be lost" in warnings[0]


def test_fail_what_is_busy(bench):
    """Into the dead letters, with the holder in the reason; the first is not disturbed."""
    bench = bench()
    job = bench.job(**PAYLOAD, idempotency_on_busy="fail")
    bench.start()
    first = job.send("a", d=0.5)
    wait_until(bench.starts)
    second = job.send("a", d=0.5)
    with pytest.raises(ResultFailure, match=first.message_id):
        bench.result(second)
    wait_until(lambda: bench.dead_letters == 1)
    assert bench.result(first) == 42
    bench.join()
    assert bench.starts() == 1
    assert len(bench.told("DeadLettered")) == 1
    assert bench.states() == {"done"}


@pytest.mark.parametrize("place", ["middleware", "actor"])
def test_what_is_given_up_is_said_once_at_boot(workbench, shared, caplog, place):
    """Promises 1 and 3, by name of the actor; not for the harmless choices, nor where there is no protection."""
    options = {"on_done": "run"} if place == "middleware" else {}
    bench = workbench(shared.urls, **options)
    bench.job("runs_again", **({} if options else {"idempotency_on_done": "run"}))
    bench.job("unprotected", idempotent=False)
    bench.job("replays", idempotency_on_done="replay", idempotency_on_busy="wait")
    bench.start()
    said = [record.message for record in caplog.records if record.name == "dramatiq_idem"]
    assert [text for text in said if "on_done='run'" in text] == [
        "actor 'runs_again' has on_done='run': a completed message runs again"
    ]


# -- on_unavailable


def test_run_without_a_quorum(workbench, proxied, short_delays):
    """MH2: it runs, with an event that says so."""
    bench = workbench(urls(proxied), on_unavailable="run")
    seen = []
    job = bench.actor(lambda x: seen.append(current_run()) or 42, actor_name="job")
    bench.start()
    set_all(proxied, "refuse")
    assert bench.result(job.send("a")) == 42
    bench.join()
    assert seen == [None]
    assert [event.reason for event in bench.told("Unprotected")] == ["unavailable"]
    assert (bench.told("Deferred"), bench.dead_letters) == ([], 0)


def test_run_without_a_quorum_is_recorded_once_there_is_one(workbench, proxied, short_delays):
    """MH2: so that its duplicate is skipped, if the nodes are back when the body returns."""
    bench = workbench(urls(proxied), on_unavailable="run")
    job = bench.job()
    bench.start()
    set_all(proxied, "refuse")
    message = job.send("a", d=1.0)
    wait_until(bench.starts, 20.0)
    set_all(proxied, "pass")
    assert bench.result(message) == 42
    wait_until(lambda: "done" in bench.states(), 5.0)
    bench.broker.enqueue(message.copy())
    bench.join()
    assert bench.starts() == 1
    assert len(bench.told("Skipped")) == 1
    assert bench.result(message) == 42


def test_fail_without_a_quorum(workbench, proxied, short_delays):
    """MH2: no run; the dead letter names the nodes and what was wrong with them."""
    bench = workbench(urls(proxied), on_unavailable="fail")
    job = bench.job()
    bench.start()
    set_all(proxied, "refuse")
    message = job.send("a")
    with pytest.raises(ResultFailure, match="no quorum") as error:
        bench.result(message)
    wait_until(lambda: bench.dead_letters == 1)
    assert str(proxied[0].port) in str(error.value)
    assert bench.starts() == 0
    (event,) = bench.told("DeadLettered")
    assert "no quorum" in event.reason


def test_stored_result_stays_where_a_redelivery_fails_without_a_quorum(workbench, proxied, short_delays):
    """Promise 4: by choice it goes to the dead letters, but what its run returned is no failure."""
    bench = workbench(urls(proxied), on_unavailable="fail")
    job = bench.job()
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    bench.join()
    set_all(proxied, "refuse")
    bench.broker.enqueue(message.copy())
    wait_until(lambda: bench.dead_letters == 1)
    assert bench.result(message) == 42
    assert bench.starts() == 1


# -- nodes that answer with errors


def refuse_memory(client, _node):
    client.config_set("maxmemory", 1)


def demote(client, node):
    client.replicaof("127.0.0.1", node.port + 1)


def lock_out(client, _node):
    client.config_set("requirepass", "secret")
    client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")


@pytest.mark.parametrize("harm", [refuse_memory, demote, lock_out], ids=["OOM", "READONLY", "NOAUTH"])
def test_node_that_answers_with_an_error_is_no_vote(workbench, fragile, short_delays, harm):
    """MH10: one of them makes no difference; with two there is no quorum, and nothing runs."""
    bench = workbench(fragile.urls)
    job = bench.job()
    bench.start()
    assert bench.result(job.send("before")) == 42
    clients = [redis.Redis.from_url(node.url, socket_timeout=5.0) for node in fragile]
    harm(clients[0], fragile[0])
    messages = [bench.twice(job.message(number)) for number in range(10)]
    bench.join()
    assert {bench.result(message) for message in messages} == {42}
    assert bench.starts() == 11
    assert bench.told("Deferred") == [] or {event.reason for event in bench.told("Deferred")} == {"busy"}
    harm(clients[1], fragile[1])
    job.send("later")
    wait_until(lambda: "unavailable" in {event.reason for event in bench.told("Deferred")})
    assert bench.starts("later") == 0
    for client in clients:
        client.close()


def test_claim_of_a_minority_is_taken_back(workbench, proxied, shared, short_delays):
    """MH5: two nodes execute it and their replies are lost; another worker claims the key as soon as they are back."""
    one, two = workbench(urls(proxied), lease=20_000), workbench(shared.urls, lease=20_000)
    one.job(), two.job()
    one.start(), two.start()
    assert one.result(one.broker.get_actor("job").send("warm")) == 42
    for proxy in proxied[:2]:
        proxy.set("drop_replies")
    message = one.broker.get_actor("job").message("a")
    one.broker.enqueue(message)
    wait_until(lambda: one.told("Deferred"))
    one.worker.pause()
    set_all(proxied, "pass")
    one.worker.stop(timeout=5_000)
    since = time.monotonic()
    two.broker.enqueue(message.copy(options={}))
    assert two.result(message) == 42
    assert time.monotonic() - since < 5.0  # far less than the lease
    assert (one.starts("a"), two.starts("a")) == (0, 1)


# -- a lost lease


def test_body_goes_on_and_can_know_that_its_lease_is_lost(bench, shared):
    """The default: it is told, by `lost`, `check` and an event; its completion is recorded."""
    bench = bench(lease=600)
    seen = []

    def job(x):
        run = current_run()
        seen.append(run.lost)
        forget_records(shared)
        wait_until(lambda: run.lost, 5.0)
        with pytest.raises(Exception, match="lost"):
            run.check()
        seen.append(run.remaining())
        return 42

    job = bench.actor(job)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    bench.join()
    assert seen == [False, 0.0]
    assert len(bench.told("LeaseLost")) == 1
    assert bench.states() == {"done"}


def test_interrupt_stops_the_body_and_leaves_the_workers_alive(bench, shared):
    """Once per lost lease, at the body; the retry runs and is completed."""
    bench = bench(lease=600, on_lost="interrupt", threads=2)
    caught = []

    def job(x):
        with bench.logged(x):
            if bench.starts() == 1:
                forget_records(shared)
                try:
                    for _ in range(500):
                        time.sleep(0.01)
                except LeaseLostInterrupt:
                    caught.append(True)
                    raise
        return 42

    job = bench.actor(job, max_retries=3, min_backoff=1, max_backoff=1)
    bench.start()
    message = job.send("a")
    assert bench.result(message) == 42
    bench.join()
    assert caught == [True]
    assert bench.starts() == 2
    assert len(bench.told("LeaseLost")) == 1
    assert all(worker.is_alive() for worker in bench.worker.workers)


class SlowHook(Middleware):
    """Stands behind us and takes longer than the lease, which is lost meanwhile; once."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.is_over = False

    def before_process_message(self, broker, message):
        if not self.is_over:
            self.is_over = True
            forget_records(self.nodes)
            time.sleep(1.2)


def test_lease_that_is_lost_before_the_body_starts_interrupts_it(bench, shared):
    """By choice: it must not run to its end just because the loss was noticed a moment before it was armed."""
    bench = bench(lease=600, on_lost="interrupt", middleware=[SlowHook(shared)])
    ends = []

    def job(x):
        ends.append((current_run().lost, "start"))
        for _ in range(30):
            time.sleep(0.01)
        ends.append((current_run().lost, "end"))
        return 42

    job = bench.actor(job, max_retries=3, min_backoff=1, max_backoff=1)
    bench.start()
    assert bench.result(job.send("a")) == 42
    bench.join()
    assert len(bench.told("LeaseLost")) == 1
    assert (True, "end") not in ends, ends


@pytest.mark.timeout(60)
def test_two_hundred_interrupts_kill_no_worker_thread(bench, shared):
    """H12: bodies that are about to return, that raise, that sleep; leases that are lost at any moment."""
    bench = bench(lease=300, on_lost="interrupt", threads=8)
    outcomes = []

    def job(x):
        until = time.monotonic() + 0.05 + (x * 37 % 100) / 250
        try:
            while time.monotonic() < until:
                time.sleep(0.001)
        except LeaseLostInterrupt:
            outcomes.append("interrupted")
            raise
        outcomes.append("ended")
        if x % 3 == 0:
            raise ValueError

    job = bench.actor(job, max_retries=0, store_results=False)
    over = threading.Event()

    def forget():
        while not over.wait(0.02):
            forget_records(shared)

    thief = threading.Thread(target=forget)
    bench.start()
    workers = list(bench.worker.workers)
    for number in range(400):
        job.send(number)
    thief.start()
    try:
        bench.join(45.0)
    finally:
        over.set()
        thief.join()
    assert all(worker.is_alive() for worker in workers)
    assert bench.worker.workers == workers
    assert len(bench.told("LeaseLost")) >= 200, len(bench.told("LeaseLost"))
    assert outcomes.count("interrupted") > 100
    assert len(outcomes) >= 400
    calm = bench.job("calm")
    messages = [calm.send(number) for number in range(16)]
    assert {bench.result(message) for message in messages} == {42}


def test_stale_owner_that_fails_leaves_its_successor_alone(workbench, proxied, shared):
    """MC2: cut off for longer than its lease, it raises while the next one runs; a third one waits for that."""
    one, two = workbench(urls(proxied), lease=900), workbench(shared.urls, lease=900)
    fail = threading.Event()

    def stale(x, d):
        fail.wait(15.0)
        raise ValueError("too late")

    options = {"idempotency_key": "job:{x}", "max_retries": 0, "idempotency_fingerprint": ["x"]}
    first = one.actor(stale, actor_name="job", **options)
    job = two.job(**options)
    one.start(), two.start()
    first.send("a", 0)
    wait_until(lambda: one.told("Claimed"))
    set_all(proxied, "hang")
    second = job.send("a", d=2.5)
    wait_until(two.starts)
    (claimed,) = two.told("Claimed")
    assert claimed.takeovers == 1
    wait_until(lambda: one.told("LeaseLost"))
    set_all(proxied, "pass")
    fail.set()
    wait_until(lambda: one.dead_letters == 1)
    third = job.send("a", d=2.5)
    wait_until(lambda: [each for each in two.told("Deferred") if each.message_id == third.message_id])
    assert two.states() == {"running"}
    assert two.log.ends() == 0
    assert [two.result(message) for message in (second, third)] == [42, 42]
    assert (two.starts(), len(two.told("LeaseLost"))) == (1, 0)
    assert len(one.told("LeaseLost")) == 1


def test_owner_that_was_overtaken_returns_the_other_ones_result(workbench, proxied, shared):
    """Promise 4: what is stored and replayed is the completion that stands, whoever ran too; and it is told."""
    one, two = workbench(urls(proxied), lease=900), workbench(shared.urls, lease=900)
    go = threading.Event()

    def slow(x):
        go.wait(15.0)
        return "stale"

    first = one.actor(slow, actor_name="job", idempotency_key="job:{x}")
    job = two.actor(lambda x: "fresh", actor_name="job", idempotency_key="job:{x}")
    one.start(), two.start()
    message = first.send("a")
    wait_until(lambda: one.told("Claimed"))
    set_all(proxied, "hang")
    assert two.result(job.send("a")) == "fresh"
    wait_until(lambda: one.told("LeaseLost"))
    set_all(proxied, "pass")
    time.sleep(1.0)  # the nodes are asked again after their pause
    go.set()
    assert one.result(message) == "fresh"
    wait_until(lambda: one.told("DoubleRun"))
    assert two.result(job.send("a")) == "fresh"
    assert {record.tail for record in two.records()} == {'"fresh"'}


@pytest.fixture
def overtaken(workbench, proxied, shared, broker_url):
    """Two workers of one queue: the first is cut off in its body, and stays there, with its lease lost."""
    one, two = workbench(urls(proxied), broker_url, lease=900), workbench(shared.urls, broker_url, lease=900)
    go = threading.Event()

    def start(first, second, **options):
        def stale(x):
            go.wait(15.0)
            return first()

        job = one.actor(stale, actor_name="job", **options)
        two.actor(lambda x: second, actor_name="job", **options)
        one.start()
        message = job.send("a")
        wait_until(lambda: one.told("Claimed"))
        for consumer in one.worker.consumers.values():  # it takes nothing more; its body goes on
            consumer.pause()
            consumer.paused_event.wait(5.0)
        set_all(proxied, "hang")
        wait_until(lambda: one.told("LeaseLost"))
        two.start()
        return one, two, message

    def wake():
        set_all(proxied, "pass")
        time.sleep(1.0)  # the nodes are asked again after their pause
        go.set()

    start.wake = wake
    return start


def fail():
    raise ValueError("too late")


def test_owner_that_was_overtaken_and_fails_leaves_the_result_alone(overtaken):
    """Promise 4: the same message was completed by another delivery; what that returned does not become a failure."""
    one, two, message = overtaken(fail, "fresh", max_retries=0)
    two.broker.enqueue(message.copy())
    assert two.result(message) == "fresh"
    wait_until(lambda: two.told("Completed"))
    overtaken.wake()
    wait_until(lambda: one.told("GivenUp"))
    time.sleep(0.3)  # the failure would be stored with the dead letter
    assert two.result(message) == "fresh"
    assert len(one.told("DoubleRun")) == 1


def test_result_that_was_stored_over_the_recorded_one_is_put_right(overtaken, monkeypatch):
    """Promise 4: the other delivery completes just behind the question whether it has; its result is the message's."""
    one, two, message = overtaken(lambda: "stale", "fresh")
    look = one.store.completion

    def look_too_early(name):
        found = look(name)
        two.broker.enqueue(message.copy())
        wait_until(lambda: two.told("Completed"))
        assert two.result(message) == "fresh"
        return found

    monkeypatch.setattr(one.store, "completion", look_too_early)
    overtaken.wake()
    wait_until(lambda: one.told("DoubleRun"))
    wait_until(lambda: two.result(message) == "fresh", 5.0)
    time.sleep(0.3)
    assert two.result(message) == "fresh"
    assert {record.tail for record in two.records()} == {'"fresh"'}


def test_results_of_two_messages_that_ran_at_once_stay_as_they_are(overtaken, monkeypatch):
    """Promise 4: with one key and two ids, nobody's stored result is changed; the record has one, and it is told."""
    one, two, message = overtaken(lambda: "stale", "fresh", idempotency_key="job:{x}")
    look, others = one.store.completion, []

    def look_too_early(name):
        found = look(name)
        others.append(two.broker.get_actor("job").send("a"))
        assert two.result(others[0]) == "fresh"
        wait_until(lambda: two.told("Completed"))
        return found

    monkeypatch.setattr(one.store, "completion", look_too_early)
    overtaken.wake()
    (told,) = wait_until(lambda: one.told("DoubleRun"))
    assert told.completed_by == others[0].message_id
    time.sleep(0.3)
    assert (one.result(message), two.result(others[0])) == ("stale", "fresh")
    assert {record.tail for record in two.records()} == {'"fresh"'}


# -- fencing tokens


def test_fencing_token_grows_over_different_quorums(workbench, shared):
    """MC8: counters 10, 1 and 1; the third node is down, then the first; each retry has a larger token."""
    for node, counter in zip(shared, (10, 1, 1), strict=True):
        with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
            client.set("idem:record:job:job:a", f"free 0 {counter} - 0 0 - -", px=60_000)
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in shared]
        bench = workbench(urls(proxies))
        tokens = []

        def job(x):
            tokens.append(current_run().fencing_token)
            assert tokens[-1] == current_run().fencing_token
            proxies[(len(tokens) + 1) % 3].set("pass")
            proxies[(len(tokens) + 2) % 3].set("refuse")
            if len(tokens) < 9:
                raise ValueError
            return 42

        job = bench.actor(job, idempotency_key="job:{x}", max_retries=20, min_backoff=1, max_backoff=1)
        proxies[2].set("refuse")
        bench.start()
        assert bench.result(job.send("a")) == 42
        bench.join()
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 9
    assert tokens[0] == 11


# -- coroutines


def test_coroutine_actors_are_protected_like_others(bench):
    """Claim, run, duplicate, replay, retry; the run is known inside of the coroutine."""
    bench = bench(middleware=[AsyncIO()])
    keys, failures = [], [True]

    async def job(x):
        run = current_run()
        await asyncio.sleep(0.05)
        assert current_run() is run
        keys.append((run.key, run.takeovers, run.fencing_token > 0))
        if failures:
            failures.pop()
            raise ValueError
        return {"x": x}

    job = bench.actor(job, idempotency_key="job:{x}", min_backoff=1, max_backoff=1)
    bench.start()
    first = job.send("a")
    assert bench.result(first) == {"x": "a"}
    bench.broker.enqueue(first.copy())
    assert bench.result(job.send("a")) == {"x": "a"}
    bench.join()
    assert keys == [("job:a", 0, True)] * 2
    assert len(bench.told("Skipped")) == 1
    assert len(bench.told("Replayed")) == 1
    assert bench.states() == {"done"}


def test_coroutine_is_interrupted_when_its_lease_is_lost(bench, shared):
    """By choice: it is cancelled, and the thread that waits for it lives."""
    bench = bench(middleware=[AsyncIO()], lease=600, on_lost="interrupt", threads=2)
    seen = []

    async def job(x):
        seen.append("start")
        if len(seen) > 1:
            return 42
        forget_records(shared)
        try:
            await asyncio.sleep(10.0)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    job = bench.actor(job, max_retries=3, min_backoff=1, max_backoff=1)
    bench.start()
    assert bench.result(job.send("a")) == 42
    bench.join()
    assert seen == ["start", "cancelled", "start"]
    assert all(worker.is_alive() for worker in bench.worker.workers)


def test_time_limit_still_interrupts_a_protected_body(bench):
    """Our own arming and disarming takes nobody else's interrupt away."""
    bench = bench(on_lost="interrupt")
    (limits,) = (each for each in bench.broker.middleware if isinstance(each, TimeLimit))
    limits.after_process_boot(bench.broker)  # as the command does

    def job(x):
        with bench.logged(x):
            if bench.starts() == 1:
                for _ in range(1000):
                    time.sleep(0.01)
        return 42

    job = bench.actor(job, time_limit=300, max_retries=1, min_backoff=1, max_backoff=1)
    bench.start()
    assert bench.result(job.send("a")) == 42
    assert bench.starts() == 2


# -- other numbers of nodes


def test_one_node(workbench, local_nodes):
    """Everything works, except surviving its loss."""
    nodes = bootstrap(local_nodes(1))
    bench = workbench(nodes.urls)
    job = bench.job(**PAYLOAD)
    tokens = []
    fenced = bench.actor(lambda x: tokens.append(current_run().fencing_token), actor_name="fenced", store_results=False)
    bench.start()
    first = bench.twice(job.message("a", d=0.3))
    assert bench.result(first) == 42
    assert bench.result(job.send("a", d=0.3)) == 42
    fenced.send(1)
    fenced.send(2)
    bench.join()
    assert bench.starts() == 1
    assert len(tokens) == 2
    assert bench.states() == {"done"}


def test_five_nodes_of_which_two_die(workbench, local_nodes):
    """A quorum is three; the duplicates of what was done before are still known."""
    nodes = bootstrap(local_nodes(5))
    bench = workbench(nodes.urls)
    job = bench.job(**PAYLOAD)
    bench.start()
    for number in range(20):
        bench.twice(job.message(number))
    bench.join()
    nodes[0].kill()
    nodes[3].pause()
    messages = [bench.twice(job.message(number)) for number in range(40)]
    bench.join()
    assert bench.starts() == 40
    assert bench.log.most_at_once() == 1
    assert {bench.result(message) for message in messages} == {42}
    nodes[3].resume()


def test_completion_on_all_nodes_waits_for_the_one_that_is_down(workbench, proxied, short_delays, broker_url):
    """write_quorum=3 of 3: the acknowledgement is held, then the completion is recorded; the body ran once."""
    bench = workbench(urls(proxied), broker_url, write_quorum=3)
    job = bench.job()
    bench.start()
    proxied[2].set("refuse")
    message = job.send("a", d=0.1)
    wait_until(bench.log.ends)
    time.sleep(3.0)  # past the hook's patience, and past the lease
    queue = "dramatiq:default.msgs"
    assert bench.broker.client.hlen(queue) == 1
    assert bench.told("Completed") == []
    proxied[2].set("pass")
    wait_until(lambda: bench.told("Completed"))
    wait_until(lambda: bench.broker.client.hlen(queue) == 0)
    assert bench.states() == {"done"}
    bench.broker.enqueue(message.copy())
    bench.join()
    assert (bench.starts(), bench.told("CompletionUnrecorded")) == (1, [])


def test_one_remembering_node_is_enough_behind_a_completion_on_all(workbench, proxied, shared, short_delays):
    """write_quorum=3 of 3: two forget the record (as if they had lost it), and the key still does not run again."""
    bench = workbench(urls(proxied), write_quorum=3)
    job = bench.job()
    bench.start()
    message = job.send("a")
    bench.join()
    wait_until(lambda: bench.told("Completed"))
    forget_records(shared[:2])
    bench.broker.enqueue(message.copy())
    bench.join()
    assert bench.starts() == 1
    assert len(bench.told("Skipped")) == 1
    assert bench.states() == {"done"}  # it was put back where it was missing
