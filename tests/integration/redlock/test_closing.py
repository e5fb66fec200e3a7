"""Closing the thread lock while others are at it: they get an answer at once, and no key is left without an owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from redlock import RedlockError
from redlock.local import LocalNodes
from tests.tools.peek import Stopwatch, happens, lock_keys


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start a thread; return it, and a list that is given its result or the error of ours that it raised."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except RedlockError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_closing_ends_what_waits_for_nodes(nodes3: LocalNodes, serving: Any, wait: float) -> None:
    """The node that had granted already is told to forget it, before or while the connections are closed."""
    redlock = serving(nodes3, node_timeout=4.0, ttl=20.0)
    redlock.acquire("warm-up").release()
    for node in nodes3[1:]:
        node.pause()
    thread, outcome = in_thread(lambda: redlock.acquire("r", wait=wait))
    assert happens(lambda: lock_keys(nodes3[:1]))
    watch = Stopwatch()
    redlock.close()
    thread.join(10.0)
    seconds = watch.seconds
    for node in nodes3:
        node.resume()
    assert isinstance(outcome[0], RedlockError)
    assert happens(lambda: lock_keys(nodes3) == [], within=0.5), lock_keys(nodes3)
    assert seconds < 1.0


def test_closing_ends_what_waits_for_the_lock(trio: LocalNodes, serving: Any) -> None:
    redlock = serving(trio)
    redlock.acquire("r")
    thread, outcome = in_thread(lambda: redlock.acquire("r", wait=30.0))
    thread.join(0.2)
    redlock.close()
    thread.join(1.0)
    assert not thread.is_alive()
    assert isinstance(outcome[0], RedlockError)
