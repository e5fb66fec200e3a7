"""The command on real nodes: run in this process, its output taken apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import redis

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.cli import build
from dramatiq_idem.record import Record, State
from redlock.local import LocalNodes
from tests.integration.dramatiq_idem.conftest import bootstrap
from tests.tools.workbench import Workbench

FENCE = 2**20


@dataclass(frozen=True)
class Outcome:
    """How a call ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


class Bench:
    """Nodes with records on them, and the command to look at them.

    Args:
        nodes: The nodes.
        urls: How the command reaches them, if not directly.
    """

    def __init__(self, nodes: LocalNodes, urls: Sequence[str] | None = None, namespace: str = "idem") -> None:
        self.nodes = nodes
        self.urls = list(urls or nodes.urls)
        self.namespace = namespace
        self.store = RedlockStore(nodes.urls, namespace=namespace, observer=lambda event: None)

    def run(self, *arguments: str, urls: Sequence[str] | None = None, stdin: str | None = None) -> Outcome:
        """Call the command; an exception that leaves it fails the test."""
        environment = {"DRAMATIQ_IDEM_NODES": ",".join(self.urls if urls is None else urls), "COLUMNS": None}
        result = CliRunner().invoke(build(), arguments, env=environment, input=stdin, catch_exceptions=False)
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def json(self, *arguments: str, status: int = 0, **options: Any) -> Any:
        """Call the command with --json, check its status and return the document."""
        outcome = self.run(*arguments, "--json", **options)
        assert outcome.status == status, outcome
        return outcome.json

    def claim(self, name: str, message_id: str = "m1", lease_ms: int = 30_000) -> Claim:
        """Claim a key."""
        claim = self.store.claim(ClaimRequest(name, message_id, "", lease_ms, 60_000))
        assert isinstance(claim, Claim)
        return claim

    def done(self, name: str, result: str = "42", message_id: str = "m1") -> None:
        """Complete a key."""
        assert self.store.complete(self.claim(name, message_id), result)

    def failed(self, name: str, reason: str = "no money left") -> None:
        """Claim a key, and give it up for good."""
        assert self.store.abandon(self.claim(name), State.FAILED, reason)

    def put(self, index: int, name: str, record: Record | str | None, ttl_ms: int = 60_000) -> None:
        """Write on one node alone."""
        key = f"{self.namespace}:record:{name}"
        with self.client(index) as client:
            if record is None:
                client.delete(key)
            else:
                client.set(key, record if isinstance(record, str) else record.text(), px=ttl_ms)

    def client(self, index: int) -> redis.Redis:
        """Return a client of one node."""
        return redis.Redis.from_url(self.nodes.urls[index], decode_responses=True, socket_timeout=5.0)

    def now(self, index: int = 0) -> int:
        """Return a node's clock in ms."""
        with self.client(index) as client:
            seconds, micros = client.time()
        return seconds * 1000 + micros // 1000

    def contents(self) -> list[dict[str, str]]:
        """Return all that the nodes have, without the times."""
        found = []
        for index in range(len(self.nodes)):
            with self.client(index) as client:
                found.append({key: client.get(key) for key in client.keys("*")})
        return found

    def close(self) -> None:
        self.store.close()


def rec(state: State, **fields: Any) -> Record:
    """Return a record with most fields empty."""
    values = {"generation": 0, "fence": 1_700_000_000 * FENCE, "token": "t", "takeovers": 0, "deadline_ms": 0}
    return Record(state, **values | {"fingerprint": "", "message_id": "m1", "tail": ""} | fields)


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Make benches that are closed after the test: `make_bench(nodes, urls=None, namespace="idem")`."""
    made: list[Bench] = []

    def make(*args: Any, **options: Any) -> Bench:
        made.append(Bench(*args, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def workbench() -> Iterator[Callable[..., Workbench]]:
    """Make brokers with the middleware and a worker in this process; see `Workbench`."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Workbench(*args, **options))


@pytest.fixture
def bench(trio: LocalNodes, make_bench: Callable[..., Bench]) -> Bench:
    """Three voting nodes that other tests use too: do not harm them."""
    return make_bench(bootstrap(trio))


@pytest.fixture
def fragile(nodes3: LocalNodes, make_bench: Callable[..., Bench]) -> Bench:
    """Three voting nodes of this test alone."""
    return make_bench(bootstrap(nodes3))


@pytest.fixture
def guarded(local_nodes: Callable[..., LocalNodes], make_bench: Callable[..., Bench]) -> Bench:
    """Three voting nodes of which the last wants a password that the command is not given right."""
    nodes = bootstrap(local_nodes(3))
    with redis.Redis.from_url(nodes.urls[2]) as client:
        client.config_set("requirepass", "right")
    wrong = nodes.urls[2].replace("redis://", "redis://:hunter2@")
    return make_bench(nodes, [*nodes.urls[:2], wrong])
