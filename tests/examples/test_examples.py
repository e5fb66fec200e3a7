"""Each example runs, on real nodes, and says what its docstring promises."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

import dramatiq_idem
from redlock import Redlock
from redlock.local import LocalNodes
from tests.tools.rabbitmq import RabbitmqServer, find_rabbitmq
from tests.tools.workbench import wait_until

pytestmark = pytest.mark.timeout(60)

ROOT = Path(dramatiq_idem.__file__).parent.parent
EXAMPLES = ROOT / "examples"

OUTCOMES = {
    "payments.py": ["requests: 4, charges: 3, amount: 6000"],
    "webhooks.py": ["handled: evt_1 (attempt 1); dead letters: 2"],
    "periodic.py": ["slots: [0, 1, 2, 3], runs: ()()()()"],
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


def post(url):
    """Post nothing; return the status and what is answered."""
    try:
        with urllib.request.urlopen(url, b"", timeout=10.0) as answer:  # noqa: S310 - the example's own server
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["detail"]


@contextlib.contextmanager
def started(command, log, **variables):
    """Run a process that ends with the test, with the processes that it starts; yield it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with (
        log.open("w") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def shop(nodes5, local_nodes, tmp_path) -> Iterator[tuple[LocalNodes, str, dict[str, str], Path]]:
    """The FastAPI example, under uvicorn: its nodes, which may be harmed, its address, its variables and its log."""
    redlock = Redlock(nodes5.urls, namespace="idem")
    redlock.bootstrap()
    redlock.close()
    broker_url, log = local_nodes(1).urls[0], tmp_path / "shop.log"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--app-dir", str(EXAMPLES), "--port", str(port)]
    command = [sys.executable, "-W", "error", "-m", "uvicorn", *options, "fastapi_producer:app"]
    variables = {"BROKER_URL": broker_url, "DRAMATIQ_IDEM_NODES": ",".join(nodes5.urls)}
    with started(command, log, **variables) as process:

        def is_up():
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return True
            return False

        wait_until(is_up, 20.0)
        yield nodes5, f"http://127.0.0.1:{port}/orders", variables, log
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert "Application shutdown complete" in log.read_text()


def test_fastapi_example(shop, tmp_path):
    """Requests at the same time send one message for each order; without a quorum none is sent, and that is said."""
    nodes, url, variables, log = shop
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, [f"{url}/{order}" for order in "abcde" * 4]))
    assert set(answers) <= {(202, "accepted"), (409, "Conflict")}
    assert {post(f"{url}/{order}") for order in "abcde"} == {(202, "accepted")}
    for node in nodes[:2]:
        node.kill()
    assert post(f"{url}/f") == (202, "accepted"), "three of five are a majority"
    with redis.Redis.from_url(variables["BROKER_URL"]) as broker:
        assert broker.hlen("dramatiq:default.msgs") == 6, "one message for each order"
    worker = [sys.executable, "-m", "dramatiq", "fastapi_producer", "--path", str(EXAMPLES), "-p", "1", "-t", "1"]
    shipping = tmp_path / "worker.log"
    with started(worker, shipping, PYTHONUNBUFFERED="1", **variables):
        wait_until(lambda: shipping.read_text().count("shipped: ") >= 6, 20.0)
    shipped = [line for line in shipping.read_text().splitlines() if line.startswith("shipped: ")]
    assert sorted(shipped) == [f"shipped: {order}" for order in "abcdef"]
    nodes[2].kill()
    assert post(f"{url}/g") == (503, "Service Unavailable")
    assert "Traceback" not in log.read_text()


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OUTCOMES, "rabbitmq.py", "fastapi_producer.py"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 60
