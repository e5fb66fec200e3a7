"""Threads that ask at the same time share the connections, and wait for their own answers only."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from redlock import Nodes
from redlock.local import LocalNodes
from tests.tools.peek import happens
from tests.tools.plans import asking


@pytest.fixture
def nodes_with_one_that_hangs(nodes3: LocalNodes) -> Any:
    nodes = Nodes(nodes3.urls, 5.0, observer=lambda _event: None)
    nodes.check()
    nodes3[2].pause()
    yield nodes
    nodes3[2].resume()
    nodes.close()


@pytest.mark.parametrize("others", [1, 7])
def test_who_waits_for_a_node_that_hangs_keeps_nobody_else_waiting(nodes_with_one_that_hangs: Any, others: int) -> None:
    """One thread leads and waits for the node; what others ask of the other two is sent and answered meanwhile."""
    nodes = nodes_with_one_that_hangs
    leading = threading.Thread(target=nodes.run, args=(asking(least=3, timeout=4.0),))
    leading.start()
    assert happens(lambda: nodes._fanout._members.waits_since < float("inf"))
    answered: list[bool] = []

    def ask() -> None:
        answered.extend(nodes.run(asking(timeout=4.0)) >= 2 for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert answered == [True] * 20 * others
    assert leading.is_alive(), "it has waited less long than they"
    leading.join(10.0)
    assert not leading.is_alive()
