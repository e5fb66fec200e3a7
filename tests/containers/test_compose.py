"""The compose file as a user starts it, but for the images, and without Grafana: up, disturbed once, and counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.containers.images import LABEL, Images
from tests.containers.ledger import read
from tests.containers.rig import NODES, WORKERS, eventually
from tests.tools.compose import GENERATIONS
from tests.tools.peek import ROOT

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(380)]

FOLDER = ROOT / "compose"
DASHBOARD = FOLDER / "grafana/dashboards/dashboard.json"
SERVICES = (*NODES, "broker", *WORKERS, "producer", "prometheus")
PAYMENTS = 800


class Project:
    """The compose file with the example's settings, started by one of the commands."""

    def __init__(self, docker: Any, command: list[str], images: Images) -> None:
        self._docker = docker
        self._command = command
        self._name = f"{LABEL}-{os.getpid()}"  # by which it is found and removed if this process is killed
        settings = dict(re.findall(r"^([A-Z_]+)=(.*)$", (FOLDER / ".env.example").read_text(), re.MULTILINE))
        self._password = settings["NODE_PASSWORD"]
        self._environment = os.environ | settings | {
            "COMPOSE_PROJECT_NAME": self._name,
            "NODE_IMAGE": images.node,
            "BROKER_IMAGE": images.node,
            "PYTHON_IMAGE": images.python,
            "WORKER_IMAGE": images.worker,
            "PROMETHEUS_IMAGE": images.prometheus,
            "PAYMENTS": str(PAYMENTS),
            "PAYMENTS_PER_SECOND": "20",
        }  # fmt: skip

    def __call__(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run the command, and return what it says."""
        return self.script(*self._command, *arguments, timeout=timeout)

    def script(self, *command: str, timeout: float, **environment: str) -> str:
        """Run any command with the project's settings, and return what it says."""
        done = subprocess.run(
            command, cwd=FOLDER, env=self._environment | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def look(self, *arguments: str) -> Any:
        """Return what our own command says of the nodes, at the addresses that the file publishes."""
        nodes = ",".join(f"redis://:{self._password}@127.0.0.1:{7001 + index}" for index in range(len(NODES)))
        done = subprocess.run(
            [sys.executable, "-m", "dramatiq_idem", *arguments, "--json"], stdin=subprocess.DEVNULL,
            env=self._environment | {"DRAMATIQ_IDEM_NODES": nodes}, capture_output=True, text=True, check=False,
            timeout=60.0,
        )  # fmt: skip
        assert self._password not in done.stdout + done.stderr
        return json.loads(done.stdout)

    def containers(self) -> dict[str, Any]:
        """Return the containers by service."""
        filters = {"label": f"com.docker.compose.project={self._name}"}
        found = self._docker.containers.list(all=True, filters=filters)
        return {container.labels["com.docker.compose.service"]: container for container in found}

    def health(self) -> dict[str, str]:
        """Return how the services are, as far as they are asked for their health."""
        states = {name: container.attrs["State"] for name, container in self.containers().items()}
        return {name: state["Health"]["Status"] for name, state in states.items() if "Health" in state}

    def log(self, name: str) -> str:
        """Return what a service wrote."""
        return str(self.containers()[name].logs().decode(errors="replace"))

    def url(self, name: str) -> str:
        """Return the address of a node or of the broker on their network."""
        (network,) = self.containers()[name].attrs["NetworkSettings"]["Networks"].values()
        return f"redis://{f':{self._password}@' if name in NODES else ''}{network['IPAddress']}:6379"


@pytest.fixture(params=GENERATIONS)
def project(request: pytest.FixtureRequest, docker: Any, images: Images) -> Iterator[Project]:
    """The project, by each generation of the command; removed with its volumes at the end."""
    project = Project(docker, GENERATIONS[request.param](), images)
    try:
        yield project
    finally:
        project("down", "--volumes", "--timeout", "3")


def prometheus(query: str) -> list[dict[str, Any]]:
    """Return Prometheus' answer, at the address that the README names; nothing while it does not answer."""
    url = f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError:
        return []


def number(query: str) -> float:
    """Return the one number that answers a query, or nothing at all as 0."""
    return sum(float(found["value"][1]) for found in prometheus(query))


def downs(project: Project) -> Counter[str]:
    """Return how often the workers found each node down."""
    return Counter(node for name in WORKERS for node in re.findall(r"NodeDown node='(node-.):", project.log(name)))


def node_that_is_killed_is_shown(project: Project) -> None:
    """By doctor, by watch, and by the dashboard's own query; and it comes back."""
    (query,) = re.findall(r'"expr": "(count\(.*dramatiq_idem_node_down.*)"', DASHBOARD.read_text())
    killed = project.containers()["node-b"]
    killed.kill()
    eventually(lambda: number(query) == 1, 40.0)
    found = project.look("doctor")["findings"]
    assert {finding["node"] for finding in found if finding["rule"] == "unreachable"} == {"127.0.0.1:7002/0"}
    assert [node["answered"] for node in project.look("watch", "--once")["nodes"]] == [True, False, True]
    killed.start()
    eventually(lambda: project.health()["node-b"] == "healthy", 40.0)
    eventually(lambda: number(query) == 0, 40.0)


def test_compose_from_up_to_the_ledger(project: Project) -> None:
    """Health, metrics, a disturbance that the workers notice, and a producer that finds all payments charged once."""
    project("build", "worker-a", timeout=180)
    project("up", "-d", *SERVICES)
    eventually(lambda: project.health() == dict.fromkeys((*NODES, "broker"), "healthy"), 40.0)
    project("restart", "--timeout", "2", "worker-b")  # as after a crash: all has to work in a container's second life
    scraped = {("worker-a:9191", "1"), ("worker-b:9191", "1")}
    eventually(lambda: {(up["metric"]["instance"], up["value"][1]) for up in prometheus("up")} == scraped, 40.0)
    eventually(lambda: number("sum(dramatiq_idem_completion_seconds_count)") > 50, 60.0)  # new nodes vote after 30 s

    node_that_is_killed_is_shown(project)
    before = downs(project)
    said = project.script("./disturb.sh", "1", timeout=60.0, REST="1")
    (node,) = set(re.findall(r"(node-[abc]): (?:kill|pause|cut) for", said))
    assert f"{node}: back" in said
    assert downs(project)[node] > before[node]

    assert project.containers()["producer"].wait(timeout=200)["StatusCode"] == 0, project.log("producer")
    assert project.log("producer").endswith("lost: 0, charged twice: 0\n")
    ledger = read((), project.url("broker"), [project.url(name) for name in NODES])
    assert len(ledger.charges) == PAYMENTS
    assert not replace(ledger, sent=set(ledger.charges)).wrongs()
    eventually(lambda: number("sum(dramatiq_idem_completion_seconds_count)") == PAYMENTS, 20.0)
    assert prometheus("count(up == 1)"), "Prometheus is not there to count"
    assert number("sum(dramatiq_idem_double_runs_total)") == 0
    assert not any("Unexpected failure" in project.log(name) for name in WORKERS)
