"""Locks on real nodes: made here, closed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from redlock import Event, Redlock, scripts
from redlock.local import LocalNodes
from tests.tools.fault_proxy import FaultProxy
from tests.tools.peek import ask


@pytest.fixture
def events() -> list[Event]:
    """What the locks of this test told their observer."""
    return []


@pytest.fixture
def make_redlock(events: list[Event]) -> Iterator[Callable[..., Redlock]]:
    """Return a factory: `make_redlock(nodes, **options)`; the nodes as a group, URLs or clients."""
    made: list[Redlock] = []

    def make(nodes: LocalNodes | Sequence[Any], **options: Any) -> Redlock:
        sources = nodes.urls if isinstance(nodes, LocalNodes) else list(nodes)
        made.append(Redlock(sources, **{"ttl": 5.0, "observer": events.append} | options))
        return made[-1]

    yield make
    for redlock in made:
        redlock.close()


@pytest.fixture
def serving(make_redlock: Callable[..., Redlock]) -> Callable[..., Redlock]:
    """As `make_redlock`, and the nodes serve at once, connected and with the scripts in their caches."""

    def make(nodes: LocalNodes | Sequence[Any], **options: Any) -> Redlock:
        redlock = make_redlock(nodes, **options)
        redlock.bootstrap()
        for url in nodes.urls if isinstance(nodes, LocalNodes) else nodes:
            for script in (scripts.ACQUIRE, scripts.EXTEND, scripts.FENCE):
                ask(url, "SCRIPT", "LOAD", script.text)
        return redlock

    return make


@pytest.fixture
def proxied() -> Iterator[Callable[[LocalNodes], list[FaultProxy]]]:
    """Return a function that puts a proxy in front of every node of a group."""
    with ExitStack() as stack:
        yield lambda nodes: [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
