"""Each example runs, on real nodes, and says what its docstring promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dramatiq_idem
from redlock import Redlock
from redlock.local import LocalNodes
from tests.tools.rabbitmq import RabbitmqServer, find_rabbitmq

pytestmark = pytest.mark.timeout(60)

ROOT = Path(dramatiq_idem.__file__).parent.parent
EXAMPLES = ROOT / "examples"

OUTCOMES = {
    "payments.py": ["requests: 4, charges: 3, amount: 6000"],
    "webhooks.py": ["handled: evt_1 (attempt 1); dead letters: 2"],
    "periodic.py": ["slots: [0, 1, 2, 3], runs: ()()()()"],
    "asyncio_producer.py": [
        "statuses: [200, 200, 200, 201, 201, 201, 409, 409, 409], shipped: ['a', 'b', 'c']",
    ],
    "pipeline_replay.py": ["ran: reserve, invoice; first: invoice 7001-2 for o-1; second: invoice 7001-2 for o-1"],
    "fenced_sql.py": ["second run writes 85: True", "first run writes 90: False", "in stock: 85"],
    "from_redlock_py.py": ["first: report, valid for 10 s; second: False", "after unlock: True"],
}


@pytest.fixture
def nodes(trio: LocalNodes) -> LocalNodes:
    """Three nodes that vote in the namespace of the examples."""
    redlock = Redlock(trio.urls, namespace="idem")
    redlock.bootstrap()
    redlock.close()
    return trio


@pytest.fixture
def rabbitmq_url(tmp_path) -> Iterator[str]:
    """A RabbitMQ of this test's own."""
    with RabbitmqServer(find_rabbitmq(), tmp_path) as server:
        yield server.url


def run(name, arguments=(), **variables):
    """Run an example; return its lines."""
    process = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.parametrize("name", OUTCOMES)
def test_example(name, nodes):
    assert run(name, nodes.urls) == OUTCOMES[name]


def test_rabbitmq_example(nodes, rabbitmq_url):
    assert run("rabbitmq.py", nodes.urls, BROKER_URL=rabbitmq_url) == ["mails: welcome to ada, welcome to grace"]


def test_nodes_may_come_from_the_environment(nodes):
    found = run("from_redlock_py.py", DRAMATIQ_IDEM_NODES=",".join(nodes.urls))
    assert found == OUTCOMES["from_redlock_py.py"]


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OUTCOMES, "rabbitmq.py"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 60
