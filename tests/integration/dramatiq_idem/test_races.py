"""What happens between two commands: a completion, a loss or a vanished holder in the middle of somebody's claim."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

import pytest
import redis

from dramatiq_idem import current_run
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.record import Record, State
from tests.integration.dramatiq_idem.conftest import urls
from tests.tools.workbench import wait_until


def on_each(nodes, act):
    for node in nodes:
        with redis.Redis.from_url(node.url, decode_responses=True, socket_timeout=5.0) as client:
            act(client)


def warm(bench, job):
    """Open connections, and let the script be known."""
    assert bench.result(job.send("warm")) == 42
    bench.join()


@pytest.mark.parametrize("asked_before", [0, 1])
def test_completion_between_the_look_and_the_claim_is_met(workbench, proxied, shared, asked_before):
    """MD1: nobody has it, B hears from some nodes or none, and is paused; A completes; B goes on and skips."""
    a, b = workbench(shared.urls), workbench(urls(proxied), node_timeout=3.0)
    job, _ = a.job(), b.job()
    a.start(), b.start()
    warm(b, b.broker.get_actor("job"))
    for proxy in proxied[asked_before:]:
        proxy.set("delay", 1.0, 0.0)
    message = job.message("a")
    b.broker.enqueue(message)
    if asked_before:  # B has its claim there, and waits for the others
        wait_until(lambda: "running" in a.states(f"job:{message.message_id}"))
    else:
        time.sleep(0.3)
    assert b.told("Claimed")[1:] == b.told("Deferred") == b.told("Skipped") == []
    a.broker.enqueue(message.copy())
    assert a.result(message) == 42
    wait_until(lambda: a.told("Completed"))
    assert b.told("Skipped") == [], "A was too slow: nothing was tried"
    wait_until(lambda: b.told("Skipped"))
    b.join()
    assert (a.starts("a"), b.starts("a")) == (1, 0)
    assert a.result(message) == 42
    assert a.states(f"job:{message.message_id}") == {"done"}


@pytest.mark.parametrize("busy", [1, 2])
def test_holder_that_vanishes_in_the_middle_of_a_claim(workbench, proxied, shared, caplog, busy):
    """MD4: some nodes said busy, the others find nothing any more; it runs, at once or deferred, without an error."""
    bench = workbench(urls(proxied), node_timeout=3.0)
    job = bench.job()
    bench.start()
    warm(bench, job)
    message = job.message("a")
    name = f"job:{message.message_id}"
    assert isinstance(bench.store.claim(ClaimRequest(name, "", "", 20_000, 60_000)), Claim)  # by a worker that is dead
    for proxy in proxied[busy:]:
        proxy.set("delay", 0.8, 0.0)
    with caplog.at_level(logging.ERROR):
        bench.broker.enqueue(message)
        time.sleep(0.3)
        on_each(shared, lambda client: client.delete(f"idem:record:{name}"))
        assert bench.starts("a") == 0
        assert bench.result(message) == 42
        for proxy in proxied:
            proxy.set("pass")
        bench.join()
    assert (bench.starts("a"), bench.dead_letters) == (1, 0)
    assert {event.reason for event in bench.told("Deferred")} == ({"busy"} if busy == 2 else set())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_renewal_that_fails_for_a_moment_keeps_the_lease(workbench, fragile):
    """MC4: two nodes are frozen for longer than their time-out; the next round counts, and nobody overtakes."""
    one, two = (workbench(fragile.urls, lease=2_400, node_timeout=0.1) for _ in range(2))
    job, _ = one.job(), two.job()
    one.start()
    message = job.send("a", d=4.0)
    wait_until(one.starts)
    time.sleep(0.6)  # the first renewal is due at a third of the lease
    for node in fragile[:2]:
        node.pause()
    time.sleep(0.6)
    for node in fragile[:2]:
        node.resume()
    assert one.told("NodeDown"), "no round failed: nothing was tried"
    two.start()
    two.broker.enqueue(message.copy())
    assert one.result(message) == 42
    two.join()
    assert (one.starts(), two.starts()) == (1, 0)
    assert one.told("LeaseLost") == []
    assert two.told("Deferred")


def test_lease_that_somebody_else_took_is_not_renewed(workbench, shared):
    """MC4: another token stands on all nodes; the run knows within its lease, and touches the record no more."""
    bench = workbench(shared.urls, lease=1_500)
    seen = []

    def job(x):
        run = current_run()
        texts = []

        def take(client):
            record = Record.parse(client.get("idem:record:job:job:a"))
            text = record.text().replace(record.token, "f" * 32)
            client.set("idem:record:job:job:a", text, px=60_000)
            texts.append(text)

        on_each(shared, take)
        since = time.monotonic()
        wait_until(lambda: run.lost, 5.0)
        seen.append(time.monotonic() - since)
        time.sleep(1.0)  # two more rounds
        seen.append(bench.store._renewer.__len__())
        seen.append([record.text() for record in bench.records("job:job:a")] == texts)
        return 42

    job = bench.actor(job, idempotency_key="job:{x}")
    bench.start()
    assert bench.result(job.send("a")) == 42
    bench.join()
    assert seen[0] <= 1.5
    assert seen[1:] == [0, True]
    assert len(bench.told("LeaseLost")) == 1


@pytest.mark.parametrize("place", ["middleware", "actor", "timedelta", "message"])
def test_retention_is_kept_to_the_second(workbench, shared, place):
    """MG8: 90 seconds are 90 seconds, wherever they are given; not a minute, not two."""
    bench = workbench(shared.urls, **({"retention": 90_000} if place == "middleware" else {}))
    given = {"actor": 90_000, "timedelta": timedelta(seconds=90)}
    job = bench.job(**({"idempotency_retention": given[place]} if place in given else {}))
    bench.start()
    options = {"idempotency_retention": 90_000} if place == "message" else {}
    message = job.send_with_options(args=("a",), **options)
    assert bench.result(message) == 42
    wait_until(lambda: bench.states() == {State.DONE.value})
    left = []
    on_each(shared, lambda client: left.append(client.pttl(f"idem:record:job:{message.message_id}")))
    assert all(abs(each - 90_000) <= 1_000 for each in left), left
