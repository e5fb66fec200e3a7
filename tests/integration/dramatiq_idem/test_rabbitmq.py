"""Worker processes that are killed, or lose their connection, over a real RabbitMQ."""

from __future__ import annotations

import secrets

import pytest

from tests.tools.worker_rig import WorkerRig

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def rig(tmp_path, shared, broker_url, rabbitmq):
    """A rig on shared nodes and a virtual host of its own."""
    with WorkerRig(tmp_path, shared.urls, rabbitmq.vhost(secrets.token_hex(4)), broker_url) as rig:
        yield rig


def crash(rig, message, point):
    """Let a worker kill itself over a message, then let the next one work until all is done."""
    rig.send(message)
    with rig.worker(KILL=point) as process:
        rig.wait_for_death(process)
    with rig.worker():
        assert rig.result(message) == 42
        rig.wait(lambda: rig.told("Skipped" if point == "before_ack" else "Completed"))
        rig.wait(rig.is_drained)


def test_worker_that_dies_in_the_body(rig):
    """MB1: RabbitMQ redelivers at once, while the dead worker's lease holds: that is no reason to drop the message."""
    crash(rig, rig.job("a", d=0.6), "body")
    assert (rig.log.starts(), rig.log.ends()) == (2, 1)
    assert any("reason='busy'" in event for event in rig.told("Deferred"))
    assert rig.dead_letters == 0


def test_worker_that_dies_between_completion_and_acknowledgement(rig):
    """MB3: the redelivered message is skipped, and its result stays."""
    crash(rig, rig.job("a", d=0.2), "before_ack")
    assert (rig.log.starts(), rig.log.ends()) == (1, 1)
    assert len(rig.told("Skipped")) == 1
    assert rig.dead_letters == 0


def test_connection_that_closes_under_a_running_job(rig):
    """MB8: the copy is delivered to the other worker while the body runs on; it is put back, and skipped at last."""
    message = rig.send(rig.job("a", d=2.5))
    with rig.worker(KILL="close"):
        rig.wait(lambda: rig.log.starts() == 1)
        with rig.worker():
            rig.wait(lambda: rig.told("Skipped"))
            rig.wait(rig.is_drained)
    assert (rig.log.starts(), rig.log.most_at_once()) == (1, 1)
    assert any("reason='busy'" in event for event in rig.told("Deferred"))
    assert rig.result(message) == 42
    assert rig.dead_letters == 0
