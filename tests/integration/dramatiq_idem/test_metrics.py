"""Real worker processes with Dramatiq's Prometheus middleware: its metrics and ours appear at one address, summed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from prometheus_client.parser import text_string_to_metric_families

import dramatiq_idem
from tests.tools.workbench import wait_until

pytestmark = pytest.mark.timeout(60)

ROOT = Path(dramatiq_idem.__file__).parent.parent
MESSAGES = 120

ACTORS = """
import os, time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.prometheus import Prometheus

from dramatiq_idem import Idempotency
from dramatiq_idem.metrics import PrometheusObserver, combine
from redlock import Redlock, log_event

observer = combine(log_event, PrometheusObserver())
nodes = os.environ["NODES"].split()
broker = RedisBroker(url=os.environ["BROKER"])
dramatiq.set_broker(broker)
Idempotency(nodes, observer=observer, lease=int(os.environ.get("LEASE", "10000"))).install(broker)
broker.add_middleware(Prometheus(), before=Idempotency)
if os.environ.get("EARLY"):  # an event about a node, before the process has booted
    lock = Redlock([*nodes[:2], "redis://127.0.0.1:1"], namespace="idem", observer=observer)
    lock.acquire(f"early:{os.getpid()}", ttl=1.0)
    lock.close()


@dramatiq.actor(idempotency_key="job:{x}", max_retries=0)
def job(x, fail=False, d=0.02):
    time.sleep(d)
    if fail:
        raise ValueError("as asked")
"""


class Service:
    """A worker with two processes, its broker, and what its metrics say."""

    def __init__(self, directory, nodes, broker_url, *options, **environment):
        self._options = options
        self.port = free_port()
        self.files = directory / "metrics"
        self.broker = RedisBroker(url=broker_url, middleware=[])
        self.broker.declare_queue("default")
        (directory / "metric_actors.py").write_text(ACTORS)
        self._log = directory / "worker.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if "multiproc_dir" not in name.lower()},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(directory)]),
            "NODES": " ".join(nodes),
            "BROKER": broker_url,
            "dramatiq_prom_port": str(self.port),
            "dramatiq_prom_host": "127.0.0.1",
            "dramatiq_prom_db": str(self.files),
            **environment,
        }
        self._directory = directory

    def __enter__(self):
        command = [sys.executable, "-m", "dramatiq", "metric_actors", "-p", "2", "-t", "4", *self._options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_exception):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)
        self.broker.close()
        self.broker.client.close()

    def send(self, *, fail=False, **kwargs):
        self.broker.enqueue(dramatiq.Message("default", "job", (), {**kwargs, "fail": fail}, {}))

    def samples(self):
        """Return all values at the address, by name and labels; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5.0) as answer:
                text = answer.read().decode()
        except OSError:
            assert self._process.poll() is None, self._log.read_text()
            return {}
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_for(self, expected):
        """Wait until some values are what they should be; return all."""
        found = {}

        def is_there():
            found.clear()
            found.update(self.samples())
            return all(found.get(name) == value for name, value in expected.items())

        try:
            wait_until(is_there, 30.0)
        except AssertionError:
            log = self._log.read_text()[-3000:]
            raise AssertionError("\n".join([*(f"{name}: {value}" for name, value in found.items()), log])) from None
        return found

    def processes(self):
        """Return which processes have written numbers."""
        return {match[1] for path in self.files.iterdir() if (match := re.search(r"_(\d+)\.db$", path.name))}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("options", [[], ["--use-spawn"]], ids=["fork", "spawn"])
def test_metrics_of_all_processes_are_summed_at_dramatiqs_address(tmp_path, shared, broker_url, options):
    with Service(tmp_path, shared.urls, broker_url, *options) as service:
        for x in range(MESSAGES):
            service.send(x=x)
        idem = "dramatiq_idem_"
        service.wait_for({(f"{idem}completion_seconds_count", "job"): MESSAGES})
        for x in range(30):
            service.send(x=x)
        service.send(x="bad", fail=True)
        found = service.wait_for(
            {
                (f"{idem}claims_total", "granted", "job"): MESSAGES + 1,
                (f"{idem}claim_seconds_count", "job"): MESSAGES + 1,
                (f"{idem}claims_total", "completed", "job"): 30,
                (f"{idem}duplicates_total", "completed", "job", "replayed"): 30,
                (f"{idem}given_up_total", "failed", "job"): 1,
                (f"{idem}double_runs_total", "job"): 0,
                ("dramatiq_messages_total", "default", "job"): MESSAGES + 31,
                ("dramatiq_message_errors_total", "default", "job"): 1,
                ("dramatiq_messages_inprogress", "default", "job"): 0,
            }
        )
        assert found[f"{idem}claim_seconds_sum", "job"] > 0
        assert len(service.processes()) == 2, "one process did all the work: nothing was summed"


def test_renewals_and_the_time_that_nodes_take_are_counted_while_a_body_runs(tmp_path, shared, broker_url):
    """A lease of 1.5 s, renewed every 0.5 s; the body waits until both are there, and is not waited for."""
    with Service(tmp_path, shared.urls, broker_url, LEASE="1500") as service:
        service.send(x=0, d=30.0)

        def has_both():
            found = service.samples()
            nodes = [found.get(("dramatiq_idem_node_seconds_count", f"127.0.0.1:{node.port}/0")) for node in shared]
            return found.get(("dramatiq_idem_lease_renewals_total", "job"), 0) >= 3 and all(nodes)

        wait_until(has_both, 25.0)
        found = service.samples()
        assert found["dramatiq_idem_claims_total", "granted", "job"] == 1
        assert ("dramatiq_idem_completion_seconds_count", "job") not in found or not found[
            "dramatiq_idem_completion_seconds_count", "job"
        ]
        node = f"127.0.0.1:{shared[0].port}/0"
        mean = found["dramatiq_idem_node_seconds_sum", node] / found["dramatiq_idem_node_seconds_count", node]
        assert 0 < mean < 0.5, "within node_timeout, and not in ms"


def test_watch_shows_what_the_workers_count(tmp_path, shared, broker_url):
    """Duplicates leave no trace on the nodes; the command adds up what it is told at the workers' address."""
    command = [sys.executable, "-m", "dramatiq_idem", "watch", "--json", "--interval", "0.2"]
    with Service(tmp_path, shared.urls, broker_url) as service:
        for x in range(20):
            service.send(x=x)
        service.wait_for({("dramatiq_idem_completion_seconds_count", "job"): 20})
        arguments = ["--metrics", f"http://127.0.0.1:{service.port}/", "--metrics", "http://u:hunter2@127.0.0.1:1/"]
        environment = os.environ | {"DRAMATIQ_IDEM_NODES": ",".join(shared.urls)}
        with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, cwd=ROOT, env=environment) as watch:
            try:
                looks = [json.loads(watch.stdout.readline())["workers"]]
                for x in range(20):
                    service.send(x=x)

                def has_all():
                    looks.append(json.loads(watch.stdout.readline())["workers"])
                    return looks[-1]["counts"]["duplicates"]["total"] == 20

                wait_until(has_all, 20.0)
            finally:
                watch.kill()
    assert looks[0]["counts"]["claims"] == {"total": 20, "per_second": None}
    assert looks[-1]["counts"]["claims"]["total"] == 20
    assert max(look["counts"]["duplicates"]["per_second"] for look in looks[1:]) > 0
    assert list(looks[-1]["unread"]) == ["http://***@127.0.0.1:1/"]
    assert "hunter2" not in json.dumps(looks)


def test_an_event_before_the_boot_costs_neither_dramatiqs_metrics_nor_itself(tmp_path, shared, broker_url):
    with Service(tmp_path, shared.urls, broker_url, EARLY="1") as service:
        for x in range(40):
            service.send(x=x)
        found = service.wait_for(
            {
                ("dramatiq_idem_completion_seconds_count", "job"): 40,
                ("dramatiq_messages_total", "default", "job"): 40,
            }
        )
        assert found["dramatiq_idem_node_failures_total", "127.0.0.1:1/0"] >= 1


def test_a_node_that_goes_and_comes_back_is_seen(tmp_path, fragile, broker_url):
    node = f"127.0.0.1:{fragile[0].port}/0"
    with Service(tmp_path, fragile.urls, broker_url) as service:
        service.send(x=0)
        service.wait_for({("dramatiq_idem_completion_seconds_count", "job"): 1})
        fragile[0].kill()
        for x in range(1, 21):
            service.send(x=x)
        found = service.wait_for({("dramatiq_idem_completion_seconds_count", "job"): 21})
        assert found["dramatiq_idem_node_down", node] >= 1
        fragile[0].restart()

        def is_back():
            service.send(x=0)
            return service.samples().get(("dramatiq_idem_node_down", node)) == 0

        wait_until(is_back, 30.0)
        admissions = {"dramatiq_idem_node_admissions_total", node}
        wait_until(lambda: any(admissions <= set(name) for name in service.samples()), 10.0)
