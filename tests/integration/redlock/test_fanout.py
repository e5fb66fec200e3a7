"""Threads that ask at the same time share the connections, and wait for their own answers only."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from redlock import Broadcast, Command, Nodes, Plan, everybody, load_script
from redlock.local import LocalNodes
from tests.tools.peek import happens

PING = load_script("redlock", "ping")


def asking_all(timeout: float) -> Plan[Any]:
    """Wait for every node."""
    return (yield Broadcast.to_all(Command(PING, (), ()), 3, timeout, everybody))


@pytest.fixture
def nodes_with_one_that_hangs(nodes3: LocalNodes) -> Any:
    nodes = Nodes(nodes3.urls, 5.0, observer=lambda _event: None)
    nodes.check()
    nodes3[2].pause()
    yield nodes
    nodes3[2].resume()
    nodes.close()


@pytest.mark.parametrize("asking", [1, 7])
def test_who_waits_for_a_node_that_hangs_keeps_nobody_else_waiting(nodes_with_one_that_hangs: Any, asking: int) -> None:
    """One thread leads and waits for the node; what others ask of the other two is sent and answered meanwhile."""
    nodes = nodes_with_one_that_hangs
    leading = threading.Thread(target=nodes.run, args=(asking_all(4.0),))
    leading.start()
    assert happens(lambda: nodes._fanout._members.waits_since < float("inf"))
    answered: list[Any] = []

    def ask() -> None:
        for _ in range(20):
            votes = nodes.run(_asking_a_quorum())
            answered.append(sum(vote.kind.value == "granted" for vote in votes) >= 2)

    threads = [threading.Thread(target=ask) for _ in range(asking)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert answered == [True] * 20 * asking
    assert leading.is_alive(), "it has waited less long than they"
    leading.join(10.0)
    assert not leading.is_alive()


class InterruptedHere(BaseException):
    """What hits a thread from outside."""


def test_thread_that_is_interrupted_while_it_leaves_takes_nobody_with_it(
    nodes3: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led, and its last step is not carried out; whoever asks next still finds somebody who asks for all."""
    nodes = Nodes(nodes3.urls, 0.5, observer=lambda _event: None)
    nodes.check()
    fanout, hit = nodes._fanout, []

    def wake_settled() -> None:
        if not hit and fanout._leader is not None and not fanout._leader.is_open:
            hit.append(fanout._leader)
            raise InterruptedHere
        type(fanout)._wake_settled(fanout)

    monkeypatch.setattr(fanout, "_wake_settled", wake_settled)
    with pytest.raises(InterruptedHere):
        nodes.run(_asking_a_quorum())
    assert hit
    assert sum(vote.kind.value == "granted" for vote in nodes.run(_asking_a_quorum())) >= 2
    nodes.close()


def _asking_a_quorum() -> Plan[Any]:
    return (yield Broadcast.to_all(Command(PING, (), ()), 3, 4.0, lambda count: count.granted >= 2))
