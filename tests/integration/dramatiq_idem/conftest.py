"""Nodes that may vote, a Redis for brokers, and a RabbitMQ of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dramatiq.worker
import pytest
import redis

from dramatiq_idem import delivery as deliveries
from redlock import Redlock
from redlock.local import LocalNodes
from tests.tools.fault_proxy import FaultProxy
from tests.tools.rabbitmq import RabbitmqServer, find_rabbitmq
from tests.tools.workbench import Workbench


def bootstrap(nodes: LocalNodes, max_ttl: float = 30.0) -> LocalNodes:
    """Let fresh nodes vote at once in the middleware's default namespace."""
    redlock = Redlock(nodes.urls, min(10.0, max_ttl), namespace="idem", max_ttl=max_ttl)
    redlock.bootstrap()
    redlock.close()
    return nodes


@pytest.fixture
def shared(trio: LocalNodes) -> LocalNodes:
    """Three voting nodes that other tests use too: do not harm them."""
    return bootstrap(trio)


@pytest.fixture
def fragile(nodes3: LocalNodes) -> LocalNodes:
    """Three voting nodes of this test alone."""
    return bootstrap(nodes3)


@pytest.fixture(scope="session")
def _broker_node(default_server: str) -> Iterator[LocalNodes]:
    with LocalNodes(1, binary=default_server) as nodes:
        yield nodes


@pytest.fixture
def broker_url(_broker_node: LocalNodes) -> str:
    """An empty Redis for a broker and its results."""
    with redis.Redis.from_url(_broker_node.urls[0], socket_timeout=5.0) as client:
        client.flushall()
    return _broker_node.urls[0]


@pytest.fixture
def workbench() -> Iterator[Callable[..., Workbench]]:
    """Make brokers with the middleware and a worker in this process; see `Workbench`."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Workbench(*args, **options))


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitmqServer]:
    """A RabbitMQ node of this run's own, on free ports."""
    binary = find_rabbitmq()
    with RabbitmqServer(binary, Path(tmp_path_factory.mktemp("rabbitmq"))) as server:
        yield server


@pytest.fixture
def proxied(shared: LocalNodes) -> Iterator[list[FaultProxy]]:
    """Three voting nodes behind proxies that can fail them."""
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in shared]


def set_all(proxies: Iterable[FaultProxy], *mode: Any) -> None:
    """Switch the mode of several proxies."""
    for proxy in proxies:
        proxy.set(*mode)


def urls(proxies: Iterable[FaultProxy]) -> list[str]:
    """Return the addresses of several proxies."""
    return [proxy.url for proxy in proxies]


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait five seconds where the delay itself is not the subject."""
    monkeypatch.setattr(deliveries, "_FIRST_OUTAGE_MS", 300)
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)


@pytest.fixture(params=["stub", "redis"])
def bench(request: pytest.FixtureRequest, workbench: Any, shared: LocalNodes) -> Callable[..., Workbench]:
    """Make a workbench on shared nodes; the test runs once for each kind of broker."""
    url = None if request.param == "stub" else request.getfixturevalue("broker_url")
    return lambda **options: workbench(shared.urls, url, **options)


@pytest.fixture
def stub(workbench: Any, shared: LocalNodes) -> Callable[..., Workbench]:
    """Make a workbench on shared nodes with a broker in memory."""
    return lambda **options: workbench(shared.urls, **options)
