"""Nodes that are down, slow, restarted or forgetful while messages are worked on."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
import redis

from tests.integration.dramatiq_idem.conftest import bootstrap, set_all, urls
from tests.tools.fault_proxy import FaultProxy
from tests.tools.workbench import threads_of, wait_until


def forget_records(node):
    with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
        client.delete(*client.keys("idem:record:*"))


def flush_scripts(nodes):
    for url in nodes.urls:
        with redis.Redis.from_url(url, socket_timeout=5.0) as client:
            client.script_flush()


# -- all nodes


@pytest.mark.parametrize("mode", ["refuse", "hang"])
@pytest.mark.parametrize("kind", ["stub", "redis"])
def test_message_waits_for_its_nodes_in_the_queue(workbench, proxied, short_delays, request, kind, mode):
    """MH1: all nodes are away for three seconds; no body runs unprotected, nothing is spent or lost."""
    broker_url = None if kind == "stub" else request.getfixturevalue("broker_url")
    bench = workbench(urls(proxied), broker_url)
    job = bench.job(max_retries=0)
    bench.start()
    set_all(proxied, mode)
    message = job.send("a")
    since = time.monotonic()
    wait_until(lambda: bench.told("Deferred"))
    time.sleep(max(0.0, since + 3.0 - time.monotonic()))
    assert bench.starts() == 0
    set_all(proxied, "pass")
    assert bench.result(message) == 42
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    assert {event.reason for event in bench.told("Deferred")} == {"unavailable"}
    assert {each.options.get("retries", 0) for each in bench.spy.enqueued} == {0}


def test_completion_waits_for_its_nodes(workbench, proxied, short_delays, broker_url):
    """The acknowledgement is held while they are away; the lease does not matter, the body does not run again."""
    bench = workbench(urls(proxied), broker_url)
    job = bench.job()
    bench.start()
    message = job.send("a", d=0.3)
    wait_until(bench.starts)
    set_all(proxied, "refuse")
    wait_until(bench.log.ends)
    time.sleep(2.5)  # past the hook's patience, and past the lease
    queue = "dramatiq:default.msgs"
    assert bench.broker.client.hlen(queue) == 1
    assert bench.told("Completed") == []
    set_all(proxied, "pass")
    wait_until(lambda: bench.told("Completed"))
    wait_until(lambda: bench.broker.client.hlen(queue) == 0)
    assert bench.states() == {"done"}
    bench.broker.enqueue(message.copy())
    bench.join()
    assert bench.starts() == 1
    assert bench.result(message) == 42
    assert bench.told("CompletionUnrecorded") == []


def test_worker_that_waits_for_its_nodes_can_be_stopped(workbench, proxied, short_delays, broker_url):
    """What it had fetched is back in the queue, and runs at the next worker."""
    bench = workbench(urls(proxied), broker_url, threads=2)
    job = bench.job()
    bench.start()
    set_all(proxied, "refuse")
    messages = [job.send(number) for number in range(4)]
    time.sleep(0.5)
    bench.worker.stop(timeout=10_000)
    assert bench.starts() == 0
    set_all(proxied, "pass")
    other = workbench(urls(proxied), broker_url)
    other.job()
    other.start()
    ids = {message.message_id for message in messages}
    wait_until(lambda: {event.message_id for event in other.told("Completed")} == ids)
    assert bench.starts() == 0
    assert other.starts() == 4


# -- one node


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_one_node_less_makes_no_difference(workbench, fragile, harm):
    """MH3: it dies or freezes in the middle of a hundred jobs; all are done, once, and no threads pile up."""
    bench = workbench(fragile.urls)
    job = bench.job()
    bench.start()
    for number in range(50):
        bench.twice(job.message(number))
    wait_until(lambda: bench.starts() > 10)
    threads = threads_of("redlock")
    getattr(fragile[2], harm)()
    for number in range(50, 100):
        bench.twice(job.message(number))
    bench.join(30.0)
    assert (bench.starts(), bench.log.most_at_once(), bench.dead_letters) == (100, 1, 0)
    assert len(threads_of("redlock")) <= len(threads) + 2  # one that tries to connect, one that hands over late
    seconds = [event.seconds for event in bench.told("Claimed")]
    assert max(seconds) < 2 * 0.5  # a claim that was under way may wait for its time-out
    assert sorted(seconds[-25:])[12] < 0.5  # it is left out: not every claim does
    assert bench.told("NodeDown")
    fragile[2].resume()


def test_node_that_forgot_cannot_make_a_completed_job_run_again(workbench, fragile):
    """Promise 3: two that remember are enough; the one that was wiped takes completions, and vouches for nothing."""
    bench = workbench(fragile.urls)
    job = bench.job()
    bench.start()
    done = job.send("done")
    bench.join()
    fragile[0].restart(wipe=True)
    bench.broker.enqueue(done.copy())
    fresh = bench.twice(job.message("fresh"))
    bench.join()
    assert (bench.starts("done"), bench.starts("fresh")) == (1, 1)
    assert bench.result(fresh) == 42
    assert bench.result(done) == 42


@pytest.mark.timeout(40)
def test_node_that_forgot_does_not_vouch_for_absence(workbench, local_nodes, short_delays):
    """Promise 3: it votes on leases again, but of two that miss the record, only one can say that there is none."""
    nodes = bootstrap(local_nodes(3), max_ttl=1.0)
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        bench = workbench(urls(proxies), max_ttl=1.0, lease=900)
        job = bench.job()
        bench.start()
        done = job.send("done")
        bench.join()
        wait_until(lambda: bench.states() == {"done"})  # on the third node too
        forget_records(nodes[2])  # as if the completion had never come through: two are enough
        nodes[0].restart(wipe=True)
        fresh = wait_until(lambda: bench.told("Admitted") or (bench.result(job.send("fresh")) and None))
        time.sleep(fresh[0].wait_ms / 1000 + 0.1)
        bench.result(job.send("late"))
        proxies[1].set("refuse")  # now nobody who can be asked remembers it
        deferrals = len(bench.told("Deferred"))
        bench.broker.enqueue(done.copy())
        wait_until(lambda: len(bench.told("Deferred")) > deferrals)
        assert "has forgotten records" in bench.told("Deferred")[-1].detail
        proxies[1].set("pass")
        bench.join()
    assert bench.starts("done") == 1
    assert len(bench.told("Skipped")) == 1


def test_job_survives_a_node_that_forgets_it(workbench, fragile):
    """The lease and the completion still have their majority."""
    bench = workbench(fragile.urls)
    job = bench.job()
    bench.start()
    message = bench.twice(job.message("a", d=2.5))
    wait_until(bench.starts)
    fragile[1].restart(wipe=True)
    bench.join()
    assert (bench.starts(), bench.log.most_at_once()) == (1, 1)
    assert bench.told("LeaseLost") == []
    assert bench.result(message) == 42


def test_duplicate_is_skipped_after_all_nodes_restarted_with_their_data(workbench, local_nodes, short_delays):
    """They have forgotten nothing; once their wait is over, they say what they know."""
    nodes = local_nodes(3, persistence="always")
    bench = workbench(nodes.urls, max_ttl=1.5)
    job = bench.job()
    bench.start()
    message = job.send("a")
    bench.join()
    for node in nodes:
        node.restart()
    bench.broker.enqueue(message.copy())
    bench.join(8.0)
    assert bench.starts() == 1
    assert len(bench.told("Skipped")) == 1


# -- scripts


def test_scripts_that_are_flushed_are_loaded_again(workbench, shared):
    """MH7: in the middle of a run, so that renewal and completion meet it too, and before the next claim."""
    bench = workbench(shared.urls, lease=900)
    job = bench.job()
    bench.start()
    message = bench.twice(job.message("a", d=1.2))
    wait_until(bench.starts)
    for _ in range(5):
        flush_scripts(shared)
        time.sleep(0.2)
    bench.join()
    flush_scripts(shared)
    assert bench.result(message) == 42
    again = job.send("b")
    assert bench.result(again) == 42
    bench.join()
    assert (bench.starts("a"), bench.starts("b")) == (1, 1)
    for kind in ("LeaseLost", "NodeDown", "CompletionUnrecorded"):
        assert bench.told(kind) == []


# -- a lost lease


def test_lease_that_is_taken_away_costs_nothing_but_an_event(workbench, shared):
    """MC6: the body goes on, its completion is recorded, the worker lives."""
    bench = workbench(shared.urls, lease=900)
    job = bench.job()
    bench.start()
    message = job.send("a", d=1.0)
    wait_until(bench.starts)
    for node in shared:
        forget_records(node)
    assert bench.result(message) == 42
    bench.join()
    assert len(bench.told("LeaseLost")) == 1
    assert bench.states() == {"done"}
    assert bench.result(bench.twice(job.message("b"))) == 42
