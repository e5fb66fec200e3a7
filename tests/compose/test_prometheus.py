"""The containers' application and a real Prometheus, without containers: every query of the dashboard is evaluated."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

import dramatiq_idem
from redlock import Redlock
from redlock.local import LocalNodes
from tests.tools.workbench import wait_until

pytest.importorskip("prometheus_client")

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

ROOT = Path(dramatiq_idem.__file__).parent.parent
PASSWORD = "p4ss-w0rd"
PAYMENTS = 320
EVENTUAL = {
    "locks lost", "records to {{node}}", "repaired {{node}}", "found {{node}}", "admitted {{node}} ({{reason}})",
    "{{state}}", "{{reason}}", "{{actor_name}}: errors",
}  # fmt: skip
"""Legends of what this test does not make happen for certain: no answer is one."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Processes:
    """Processes with logs, which end with the test."""

    def __init__(self, directory, stack):
        self.directory = directory
        self._stack = stack

    def start(self, name, *command, **environment):
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=os.environ | environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._stack.callback(end, process)
        return process

    def logs(self):
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in self.directory.glob("*.log"))


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10.0)


@pytest.fixture
def processes(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Processes(tmp_path, stack)


@pytest.fixture
def locked_nodes(local_nodes) -> LocalNodes:
    """Three voting nodes with a password."""
    nodes = local_nodes(3, config={"requirepass": PASSWORD})
    redlock = Redlock([url.replace("//", f"//:{PASSWORD}@") for url in nodes.urls], namespace="idem")
    redlock.bootstrap()
    redlock.close()
    return nodes


class Server:
    """A Prometheus with the containers' configuration, but for the addresses of the workers."""

    def __init__(self, processes, binary, compose, ports):
        config = (compose / "prometheus.yml").read_text().replace("5s", "1s")
        for name, port in zip(("worker-a:9191", "worker-b:9191"), ports, strict=True):
            assert name in config
            config = config.replace(name, f"127.0.0.1:{port}")
        (processes.directory / "prometheus.yml").write_text(config)
        (processes.directory / "alerts.yml").write_text((compose / "alerts.yml").read_text())
        port = free_port()
        self._url, self._ready = f"http://127.0.0.1:{port}/api/v1", f"http://127.0.0.1:{port}/-/ready"
        processes.start(
            "prometheus",
            binary,
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        )

    def get(self, path, **arguments):
        url = f"{self._url}/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:  # noqa: S310 - our own server
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:  # what is wrong with a query stands in the body
            raise AssertionError(f"{arguments}: {error.read().decode()}") from None

    def query(self, text):
        text = text.replace("$__rate_interval", "30s").replace("$__range", "5m").replace("$actor", ".*")
        return self.get("query", query=text)["result"]

    def answers(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(self._ready, timeout=5.0):  # noqa: S310 - as above
            return True
        return False


def test_every_query_of_the_dashboard_works(tool, compose, dashboard, processes, locked_nodes, local_nodes):
    binary = tool("prometheus")
    broker = local_nodes(1)[0]
    ports = [free_port(), free_port()]
    application = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(compose / "app")]),
        "NODES": " ".join(f"127.0.0.1:{node.port}" for node in locked_nodes),
        "NODE_PASSWORD": PASSWORD,
        "BROKER_URL": broker.url,
        "PAYMENTS": str(PAYMENTS),
        "PAYMENTS_PER_SECOND": "40",
    }
    for index, port in enumerate(ports):
        metrics = {"dramatiq_prom_port": str(port), "dramatiq_prom_db": str(processes.directory / f"metrics{index}")}
        command = [sys.executable, "-m", "dramatiq", "payments", "--processes", "2", "--threads", "8"]
        processes.start(f"worker{index}", *command, **application, **metrics, dramatiq_prom_host="127.0.0.1")
    server = Server(processes, binary, compose, ports)
    try:
        wait_until(server.answers, 20.0)
        wait_until(lambda: [found["value"][1] for found in server.query("up")] == ["1", "1"], 20.0)
        producer = processes.start("producer", sys.executable, str(compose / "app/producer.py"), **application)
        wait_until(lambda: server.query("sum(dramatiq_idem_completion_seconds_count) > 60"), 30.0)
        locked_nodes[0].kill()
        wait_until(lambda: server.query("sum(dramatiq_idem_node_down) > 0"), 30.0)
        locked_nodes[0].restart()
        wait_until(lambda: producer.poll() is not None, 60.0)
        said = (processes.directory / "producer.log").read_text()
        assert producer.returncode == 0, said
        assert f"payments charged: {PAYMENTS}, charged twice: 0" in said
        wait_until(lambda: server.query(f"sum(dramatiq_idem_completion_seconds_count) >= {PAYMENTS}"), 20.0)
        wait_until(lambda: server.query(f"sum(dramatiq_idem_duplicates_total) >= {PAYMENTS / 5}"), 20.0)
        check_queries(server, dashboard)
        check_numbers(server)
        check_alerts(server)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{processes.logs()}") from None


def check_queries(server, dashboard):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found = server.query(target["expr"])
            assert found or target["legendFormat"] in EVENTUAL, f"{panel['title']}: {target['expr']} is empty"
    (actors,) = dashboard["templating"]["list"]
    assert "label_values(dramatiq_idem_claims_total, actor)" in str(actors["query"])
    assert server.get("label/actor/values", **{"match[]": "dramatiq_idem_claims_total"}) == ["charge"]


def check_numbers(server):
    """Both workers' processes together did each payment once, and met each duplicate."""

    def number(query):
        return float(server.query(query)[0]["value"][1])

    granted = number('sum(dramatiq_idem_claims_total{outcome="granted"})')
    assert number("sum(dramatiq_idem_claim_seconds_count)") == granted
    assert number("sum(dramatiq_idem_completion_seconds_count)") == PAYMENTS
    assert number("sum(dramatiq_idem_duplicates_total)") == PAYMENTS / 5
    assert number("sum(dramatiq_idem_double_runs_total)") == 0


def check_alerts(server):
    (group,) = server.get("rules")["groups"]
    assert [rule["health"] for rule in group["rules"]] == ["ok"] * len(group["rules"])
