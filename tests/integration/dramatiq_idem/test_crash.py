"""Worker processes that are killed, stopped or many; the broker is a Redis."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from dramatiq import Message

from tests.tools.worker_rig import WorkerRig

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def rig(tmp_path, shared, broker_url) -> Iterator[Callable[..., WorkerRig]]:
    """Make a rig on shared nodes."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(WorkerRig(tmp_path, shared.urls, broker_url, **options))


def crash(rig, message, point):
    """Let a worker kill itself over a message, then let the next one work until all is done.

    Return the seconds for which the next one worked until a body started; more than that if none did.
    """
    rig.send(message)
    with rig.worker(KILL=point) as process:
        rig.wait_for_death(process)
    starts = rig.log.starts()
    with rig.worker():
        rig.wait_for_boots(2)
        booted = time.monotonic()
        rig.wait(lambda: rig.log.starts() > starts or rig.is_drained())
        took = time.monotonic() - booted
        rig.wait(rig.is_drained)
        assert rig.result(message) == 42
    return took


def states(nodes, message):
    """Return the states of a message's record on the nodes."""
    found = set()
    for url in nodes.urls:
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0) as client:
            found.add(client.get(f"idem:record:job:{message.message_id}").split()[0])
    return found


def test_worker_that_dies_in_the_body(rig):
    """MB1: its lease runs out, not its time limit of an hour; the next worker takes over and completes."""
    rig = rig(actor={"time_limit": 3_600_000}, lease=4_000)  # the broker redelivers it while the lease holds
    took = crash(rig, rig.job("a", d=0.6), "body")
    assert took < 4.0 + 1.5 + 2.0  # the lease, the broker's heartbeat, and some
    assert (rig.log.starts(), rig.log.ends()) == (2, 1)
    assert [line["takeovers"] for line in rig.lines if line["what"] == "start"] == [0, 1]
    assert len(rig.told("Completed")) == 1
    assert any("reason='busy'" in event for event in rig.told("Deferred"))
    assert rig.dead_letters == 0


def test_worker_that_dies_between_body_and_completion(rig):
    """The case that no lock can help: it runs again, told that it is a takeover."""
    rig = rig()
    crash(rig, rig.job("a", d=0.2), "behind_body")
    assert rig.log.starts() == 2
    assert [line["takeovers"] for line in rig.lines if line["what"] == "start"] == [0, 1]
    assert len(rig.told("Completed")) == 1
    assert rig.dead_letters == 0


def test_worker_that_dies_between_completion_and_acknowledgement(rig):
    """MB3: the redelivered message is skipped, and its result stays."""
    rig = rig()
    crash(rig, rig.job("a", d=0.2), "before_ack")
    assert (rig.log.starts(), rig.log.ends()) == (1, 1)
    assert len(rig.told("Skipped")) == 1
    assert rig.dead_letters == 0


@pytest.mark.parametrize("point", ["next_enqueue", "next_enqueued"])
def test_worker_that_dies_while_it_enqueues_the_next_step(rig, point):
    """MB4: before the next step is in the queue, or when it is; it starts once, and the first one at most twice."""
    rig = rig()
    step = Message("default", "after", (), {}, {})
    message = rig.job("a", d=0.1).copy(options={"pipe_target": step.asdict()})
    crash(rig, message, point)
    with rig.worker():
        rig.wait(lambda: rig.result(step) == 42)
        rig.wait(rig.is_drained)
    assert [line["key"] for line in rig.lines if line["what"] == "after"] == [42]
    assert 1 <= rig.log.starts() <= 2
    assert rig.dead_letters == 0


def test_process_that_starts_again_is_not_in_its_own_way(rig):
    """MC10: killed with its claim, it comes back with the same id on the same host, and gets the same message."""
    rig = rig(lease=4_000)  # the broker redelivers it while the lease holds
    message = rig.send(rig.job("a", d=0.1))
    with rig.worker(KILL="claimed", SAME_PID="4711") as process:
        rig.wait_for_death(process)
    died = time.monotonic()
    with rig.worker(SAME_PID="4711"):
        rig.wait(lambda: rig.log.starts() == 1)
        assert time.monotonic() - died < 4.0 + 4.0  # the lease, and a deferral that was under way when it ended
        assert rig.result(message) == 42
        rig.wait(rig.is_drained)
    assert {line["pid"] for line in rig.lines} == {4711}
    assert rig.told("Deferred"), "it was not delivered within the lease: nothing was tried"
    assert [line["takeovers"] for line in rig.lines if line["what"] == "start"] == [1]
    assert rig.dead_letters == 0


def test_interrupted_job_is_given_up_and_runs_again(rig, shared):
    """MB9: a shutdown is no completion, and the key is free at once, for the retry at the next worker."""
    # The retry is long enough under way that the stopping worker does not take it once more.
    rig = rig(actor={"notify_shutdown": True, "min_backoff": 4_000, "max_backoff": 4_000}, lease=20_000)
    message = rig.send(rig.job("a", d=5.0))
    with rig.worker() as process:
        rig.wait(lambda: rig.log.starts() == 1)
        process.send_signal(signal.SIGTERM)
        process.wait(20.0)
    assert rig.told("Completed") == []
    assert len(rig.told("GivenUp")) == 1
    assert rig.log.ends() == 0
    assert states(shared, message) == {"free"}
    with rig.worker():
        rig.wait(lambda: rig.log.starts() == 2)  # long before the lease would have ended
        rig.wait(lambda: rig.told("Completed"))
        rig.wait(rig.is_drained)
    assert (rig.log.starts(), rig.log.ends(), len(rig.told("Completed"))) == (2, 1, 1)
    assert rig.told("Deferred") == []
    assert message.message_id in rig.told("GivenUp")[0]


def test_process_that_was_stopped_leaves_its_successor_alone(rig, shared):
    """MC2: stopped for longer than its lease, it raises behind the takeover; a third copy waits for the second run."""
    rig = rig(lease=1_000, actor={"max_retries": 0})
    message = rig.send(rig.job("a", d=4.0))
    with rig.worker(RAISE="1") as stale:
        rig.wait(lambda: rig.log.starts() == 1)
        os.killpg(stale.pid, signal.SIGSTOP)
        with rig.worker():
            rig.wait(lambda: rig.log.starts() == 2)
            os.killpg(stale.pid, signal.SIGCONT)  # its four seconds are over soon
            rig.wait(lambda: rig.told("GivenUp"))
            assert states(shared, message) == {"running"}
            assert rig.log.ends() == 0
            deferrals = len(rig.told("Deferred"))
            rig.send(message)
            rig.wait(lambda: len(rig.told("Deferred")) > deferrals)
            rig.wait(lambda: rig.told("Skipped"))
            rig.wait(rig.is_drained)
    assert (rig.log.starts(), rig.log.ends(), len(rig.told("Completed"))) == (2, 1, 1)
    assert len(rig.told("LeaseLost")) == 1
    assert states(shared, message) == {"done"}


@pytest.mark.parametrize("start", ["--use-spawn", "fork"])
def test_each_process_renews_its_own_leases(rig, start):
    """MC11: a renewal thread made before a fork would be missing in the children."""
    rig = rig(lease=700)
    messages = [rig.send(rig.job(number, d=2.0)) for number in range(4)]
    arguments = [start] if start.startswith("-") else []
    # Three deliveries at a time, so that four jobs keep both processes busy and leave one thread for duplicates.
    with rig.worker(*arguments, processes=2, threads=3, dramatiq_queue_prefetch="3"):
        rig.wait(lambda: rig.log.starts() == 4)
        for message in messages:
            rig.send(message)
        rig.wait(lambda: rig.log.ends() == 4)
        rig.wait(rig.is_drained)
    assert rig.log.starts() == 4
    assert rig.log.most_at_once() == 1
    assert rig.told("LeaseLost") == []
    assert len({line["pid"] for line in rig.lines if line["what"] == "start"}) == 2


def test_two_copies_that_start_at_once_on_two_workers(rig):
    """MD2: 200 ids, two copies each, two workers of eight threads."""
    rig = rig()
    messages = [rig.job(number, d=0.001 * (number % 6)) for number in range(200)]
    with rig.worker(threads=8), rig.worker(threads=8):
        rig.wait_for_boots(2)
        for message in messages:
            rig.send(message)
            rig.send(message)
        rig.wait(lambda: rig.log.ends() >= 200)
        rig.wait(rig.is_drained)
    assert rig.log.starts() == 200
    assert rig.log.most_at_once() == 1
    assert rig.dead_letters == 0
    assert {rig.result(message) for message in messages[::20]} == {42}
    assert len({line["pid"] for line in rig.lines if line["what"] == "start"}) == 2
