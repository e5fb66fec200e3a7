"""Containers are paused, killed, cut off, starved while real workers run: no payment lost, none charged twice.

A fault that nobody noticed is none: each is seen both by Docker or the kernel, and by the workers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.containers.images import program
from tests.containers.ledger import client, records
from tests.containers.rig import NODES, Rig, eventually

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(180)]  # the first one builds the images

KILLED = 128 + 9
"""What Docker says of a process that was ended by SIGKILL."""


# -- nodes


def test_a_node_is_paused(rig: Rig) -> None:
    """It accepts connections and answers nothing; the others go on."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with rig.noticed("node-a"):
            rig.containers["node-a"].pause()
            assert rig.state("node-a")["Paused"]
            traffic.goes_on()
        up = rig.told("NodeUp", "node-a")
        rig.containers["node-a"].unpause()
        eventually(lambda: rig.told("NodeUp", "node-a") > up)
        traffic.judge()


def test_two_nodes_are_paused(rig: Rig) -> None:
    """Without a quorum nothing runs; the messages wait, and run when there is one again."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with rig.noticed("node-a"), rig.noticed("node-b"):
            for name in NODES[:2]:
                rig.containers[name].pause()
            eventually(lambda: rig.told("Deferred") and "reason='unavailable'" in rig.log("worker-a"))
            before = traffic.charged()
            time.sleep(2.0)
            assert traffic.charged() == before
        for name in NODES[:2]:
            rig.containers[name].unpause()
        traffic.judge()


def test_a_node_is_killed_and_started(rig: Rig) -> None:
    """It comes back with its data, and says that it was restarted before it votes."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with rig.noticed("node-b"):
            rig.containers["node-b"].kill()
            assert rig.containers["node-b"].wait(timeout=10)["StatusCode"] == KILLED
            traffic.goes_on()
        rig.containers["node-b"].start()
        eventually(lambda: rig.told("Admitted", "node-b"))
        assert "Admitted node='node-b:6379/0' reason='restarted'" in rig.log("worker-a") + rig.log("worker-b")
        traffic.judge()


def test_a_node_is_cut_off(rig: Rig) -> None:
    """Its name is gone and its address does not answer; the server itself knows nothing of it."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with rig.noticed("node-c"):
            rig.network.disconnect(rig.containers["node-c"])
            assert rig.state("node-c")["Running"]
            traffic.goes_on()
        up = rig.told("NodeUp", "node-c")
        rig.network.connect(rig.containers["node-c"], aliases=["node-c"])
        eventually(lambda: rig.told("NodeUp", "node-c") > up)
        traffic.judge()


LOSSES = {
    "requests": ["INPUT", "-p", "tcp", "--dport", "6379"],
    "replies": ["OUTPUT", "-p", "tcp", "--sport", "6379"],
    "most packets": ["INPUT", "-p", "tcp", "-m", "statistic", "--mode", "random", "--probability", "0.6"],
}


@pytest.mark.parametrize("loss", LOSSES)
def test_packets_are_dropped(rig: Rig, loss: str) -> None:
    """In front of one node: silence, not an error. Where replies are lost, the node has done what it was asked for."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with dropping(rig, "node-a", LOSSES[loss]) as dropped, rig.noticed("node-a"):
            traffic.goes_on()
            eventually(lambda: dropped() > 5)
        traffic.judge()


@contextmanager
def dropping(rig: Rig, name: str, rule: list[str]) -> Iterator[Callable[[], int]]:
    """Drop packets in a container's network; yield a function that returns how many it were."""
    root = ["sudo", "-n"] if os.geteuid() else []
    inside = [*root, program("nsenter"), "-t", str(rig.state(name)["Pid"]), "-n", program("iptables"), "-w", "5"]

    def iptables(*arguments: str) -> str:
        done = subprocess.run([*inside, *arguments], check=False, capture_output=True, text=True, timeout=15)
        assert done.returncode == 0, done.stderr
        return done.stdout

    iptables("-A", *rule, "-j", "DROP")
    try:
        yield lambda: int(iptables("-L", rule[0], "-v", "-x", "-n").splitlines()[2].split()[0])
    finally:
        iptables("-D", *rule, "-j", "DROP")


def test_a_node_is_killed_for_its_memory(rig: Rig) -> None:
    """The kernel ends it at its container's limit, which is lower than what the server thinks it may use."""
    with rig.traffic() as traffic:
        traffic.goes_on()
        with rig.noticed("node-a"):
            with client(rig.url("node-a")) as node, pytest.raises(redis.ConnectionError):
                node.eval("return #string.rep('x', 400 * 1024 * 1024)", 0)
            assert rig.containers["node-a"].wait(timeout=10)["StatusCode"] == KILLED
            assert rig.state("node-a")["OOMKilled"]
            traffic.goes_on()
        rig.containers["node-a"].start()
        eventually(lambda: rig.told("Admitted", "node-a"))
        traffic.judge()


# -- workers


def test_a_worker_is_killed(rig: Rig) -> None:
    """What it was running is taken over when its lease ends; a charge that it made already is not made again."""
    with rig.traffic(per_second=1_000) as traffic:
        traffic.goes_on()
        rig.containers["worker-a"].kill()
        assert rig.containers["worker-a"].wait(timeout=10)["StatusCode"] == KILLED
        rig.containers["worker-a"].start()
        traffic.judge(runs_once=False)
        assert taken_over(rig)


def taken_over(rig: Rig) -> set[str]:
    """Return the payments of which a run ended with its lease, and not with a completion or an error."""
    return {payment for url in rig.node_urls() for payment, record in records(url).items() if record.takeovers}


def test_a_worker_is_paused_beyond_its_lease(rig: Rig) -> None:
    """Others take over; when it goes on, it ends what it began, and its charge is known already."""
    with rig.traffic(per_second=1_000) as traffic:
        traffic.goes_on()
        rig.containers["worker-a"].pause()
        assert rig.state("worker-a")["Paused"]
        eventually(lambda: traffic.charged() == len(traffic.payments), 60.0)
        rig.containers["worker-a"].unpause()
        eventually(lambda: rig.told("DoubleRun"))
        ledger = traffic.judge(runs_once=False, overtaken=True)
        assert any(times > 1 for times in ledger.requests.values())
        assert taken_over(rig)
