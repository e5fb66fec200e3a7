"""Three nodes, a broker and two workers in containers, payments that are sent to them, and what they say."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from dramatiq_idem.demo.traffic import plan_deliveries
from redlock import Redlock
from tests.containers.images import LABEL, Images
from tests.containers.ledger import Ledger, client, read
from tests.tools.peek import ROOT

__all__ = ["NODES", "WORKERS", "Rig", "Traffic", "eventually"]

NODES = ("node-a", "node-b", "node-c")
WORKERS = ("worker-a", "worker-b")
PASSWORD = "p4ss-w0rd"
MEMORY = "128m"
"""Limit of a node's container, below the one that the server has by itself."""


def eventually(condition: Callable[[], Any], within: float = 20.0) -> None:
    """Wait until something holds, which takes some work to find out; a bound, not a measurement."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {within} s"
        time.sleep(0.1)


class Rig:
    """Containers as the compose file has them, on a network of their own.

    Args:
        docker: A client of the `docker` package.
        images: What they are made of.
    """

    def __init__(self, docker: Any, images: Images) -> None:
        self._docker = docker
        self._images = images
        self._labels = {LABEL: str(os.getpid())}
        self._stack = contextlib.ExitStack()
        self.containers: dict[str, Any] = {}

    def __enter__(self) -> Rig:
        with contextlib.ExitStack() as stack:
            name = f"{LABEL}-{os.getpid()}-{time.monotonic_ns()}"
            self.network = self._docker.networks.create(name, labels=self._labels)
            stack.callback(self.network.remove)
            stack.callback(self._remove)  # before the network, and also what could be started only in part
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _remove(self) -> None:
        while self.containers:
            self.containers.popitem()[1].remove(force=True, v=True)

    def _start(self) -> None:
        script = {str(ROOT / "compose/node.sh"): {"bind": "/etc/node.sh", "mode": "ro"}}
        node = {"command": ["sh", "/etc/node.sh"], "volumes": script}
        for name in NODES:
            secret = {"NODE_PASSWORD": PASSWORD}
            limits = {"mem_limit": MEMORY, "memswap_limit": MEMORY}
            self.run(name, self._images.node, environment=secret, **limits, **node)
        self.run("broker", self._images.node, **node)
        for name in (*NODES, "broker"):
            eventually(lambda name=name: self.answers(name), 20.0)
        redlock = Redlock(self.node_urls(), namespace="idem")
        redlock.bootstrap()  # else they would vote after max_ttl
        redlock.close()
        for name in WORKERS:
            environment = {"NODES": " ".join(f"{node}:6379" for node in NODES), "NODE_PASSWORD": PASSWORD}
            broker = {"BROKER_URL": "redis://broker:6379", "dramatiq_prom_db": "/run/metrics"}
            self.run(name, self._images.worker, environment=environment | broker, tmpfs={"/run/metrics": ""})
        eventually(lambda: all(self.log(name).count("Worker process is ready") == 2 for name in WORKERS), 30.0)

    def run(self, name: str, image: str, **options: Any) -> None:
        """Start a container that the others find by its name."""
        aliases = {self.network.name: self._docker.api.create_endpoint_config(aliases=[name])}
        container = self._docker.containers.create(
            image, network=self.network.name, networking_config=aliases, labels=self._labels, **options
        )
        self.containers[name] = container
        container.start()

    # -- how they are

    def address(self, name: str) -> str:
        """Return a container's address on our network."""
        self.containers[name].reload()
        return str(self.containers[name].attrs["NetworkSettings"]["Networks"][self.network.name]["IPAddress"])

    def url(self, name: str) -> str:
        """Return the address of a node or of the broker for a client."""
        login = f":{PASSWORD}@" if name in NODES else ""
        return f"redis://{login}{self.address(name)}:6379"

    def node_urls(self) -> list[str]:
        """Return the nodes' addresses."""
        return [self.url(name) for name in NODES]

    def answers(self, name: str) -> bool:
        """Tell whether a server answers."""
        with contextlib.suppress(redis.RedisError, OSError), client(self.url(name)) as server:
            return bool(server.ping())
        return False

    def state(self, name: str) -> dict[str, Any]:
        """Return what Docker says about a container."""
        self.containers[name].reload()
        return dict(self.containers[name].attrs["State"])

    def log(self, name: str) -> str:
        """Return all that a container has written."""
        return str(self.containers[name].logs().decode(errors="replace"))

    def told(self, event: str, node: str = "") -> int:
        """Return how many events of a kind the workers have logged, of one node or of all."""
        line = re.compile(rf"\] {event} " + (f"node='{node}:" if node else ""))
        return sum(len(line.findall(self.log(name))) for name in WORKERS)

    # -- what they do

    @contextlib.contextmanager
    def traffic(self, payments: int = 180, per_second: float = 40.0) -> Iterator[Traffic]:
        """Send payments meanwhile; at the end, wait until all are sent and the queues are empty."""
        traffic = Traffic(self, payments, per_second)
        traffic.start()
        try:
            yield traffic
        finally:
            traffic.join(60.0)

    @contextlib.contextmanager
    def noticed(self, node: str, within: float = 20.0) -> Iterator[None]:
        """Assert that a worker reports a node as down after what happens inside."""
        before = self.told("NodeDown", node)
        yield
        eventually(lambda: self.told("NodeDown", node) > before, within)


class Traffic(threading.Thread):
    """Sends payments, one in five of them twice; made by `Rig.traffic`."""

    def __init__(self, rig: Rig, payments: int, per_second: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._rig = rig
        self._broker_url = rig.url("broker")
        self._pause = 1 / per_second
        self._deliveries = plan_deliveries(payments, seed=payments)
        self.payments = {str(delivery.event["payment"]) for delivery in self._deliveries}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Send everything."""
        try:
            self._send()
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.failure = error

    def _send(self) -> None:
        broker = RedisBroker(url=self._broker_url, middleware=[])
        broker.declare_queue("payments")
        messages: dict[str, Message[Any]] = {}
        for delivery in self._deliveries:
            payment = str(delivery.event["payment"])
            message = Message("payments", "charge", (delivery.event,), {}, {})
            messages[payment] = messages[payment].copy() if delivery.kind == "copy" else message
            broker.enqueue(messages[payment])
            time.sleep(self._pause)
        broker.close()
        broker.client.close()

    def ledger(self) -> Ledger:
        """Return how it stands; all nodes must answer."""
        return read(self.payments, self._broker_url, self._rig.node_urls())

    def charged(self) -> int:
        """Return how many payments are charged by now."""
        return len(read(self.payments, self._broker_url, ()).charges)

    def goes_on(self, by: int = 20, within: float = 20.0) -> None:
        """Wait until that many payments more are charged."""
        aim = self.charged() + by
        eventually(lambda: self.charged() >= aim, within)

    def judge(self, within: float = 60.0, *, runs_once: bool = True, overtaken: bool = False) -> Ledger:
        """Wait until everything is sent and nothing queued, assert that no promise is broken, and return the ledger.

        Args:
            within: Seconds for each wait.
            runs_once: No worker was harmed, so that no body has a reason to run again.
            overtaken: A worker was stopped for so long that runs were taken over which it ended nevertheless: that must
                have been reported; otherwise it must not.
        """
        self.join(within)
        assert not self.is_alive(), "the payments could not be sent in time"
        assert self.failure is None, self.failure
        eventually(lambda: not read((), self._broker_url, ()).queued, within)
        eventually(lambda: all(self._rig.answers(name) for name in NODES), 20.0)
        ledger = self.ledger()
        wrongs = ledger.wrongs(runs_once=runs_once)
        assert not wrongs, wrongs
        assert not ledger.dead
        assert bool(self._rig.told("DoubleRun")) == overtaken
        assert not self._rig.told("CompletionUnrecorded")
        for name in WORKERS:
            assert "Unexpected failure" not in self._rig.log(name), "a middleware failed"
            assert "observer failed" not in self._rig.log(name)
        return ledger
