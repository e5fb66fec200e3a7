"""One run, from the first process to the last."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dramatiq_idem.demo.audit import Evidence, Report, audit, completions
from dramatiq_idem.demo.display import Display
from dramatiq_idem.demo.drill import Drill, Step
from dramatiq_idem.demo.gateway import Gateway
from dramatiq_idem.demo.history import Deed, History, What
from dramatiq_idem.demo.jobs import LEASE, NAMESPACE, Producer, Site, connect, ignore
from dramatiq_idem.demo.journal import BOOTED, CHARGED, COMPLETED, RETURNED, STARTED, JournalReader
from dramatiq_idem.demo.traffic import Delivery
from dramatiq_idem.demo.workers import Workers
from redlock import Redlock
from redlock.local import LocalNodes

__all__ = ["Options", "run"]

_WORKERS: Final = 2
_TICK: Final = 0.05
_AIMING: Final = 1.0
"""Seconds in which the worst moment for a kill must come."""
_GLANCE: Final = 0.005
_AGAIN: Final = "is started again; the broker redelivers what the dead one had"
_BATCH: Final = 400
"""Messages that are sent in one tick at most."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run.

    Args:
        deliveries: What to send, in order.
        seed: What they were made with; for the report.
        without: What is left out on purpose: "middleware", "gateway-key" or nothing.
        limit: Seconds after which the run is given up.
        keeps_history: Whether the history is wanted too.
    """

    deliveries: Sequence[Delivery]
    seed: int
    without: str
    limit: float
    keeps_history: bool = False


def run(options: Options, display: Display) -> tuple[Report, History | None]:
    """Start everything, send, kill, wait for empty queues, look at what came of it, and end everything.

    Returns:
        What it came to, and how it went, if the options want that.
    Raises:
        RedlockError: A server or a worker could not be started, or a worker ended by itself.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        nodes = stack.enter_context(LocalNodes(3, persistence="everysec"))
        broker_node = stack.enter_context(LocalNodes(1))[0]
        with closing(Redlock(nodes.urls, LEASE, namespace=NAMESPACE, max_ttl=LEASE, observer=ignore)) as lock:
            lock.bootstrap()
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dramatiq-idem-"))
        site = Site(broker_node.url, tuple(nodes.urls), directory, options.without)
        workers = stack.enter_context(Workers(site))
        scene = _Scene(site, nodes, workers, options, display)
        finished = scene.play(started + options.limit)
        ended = time.monotonic()
        evidence = scene.evidence()
        report = audit(
            scene.payments,
            evidence,
            seed=options.seed,
            without=options.without,
            sent=scene.sent,
            cut_off=scene.cut_off,
            workers_killed=scene.workers_killed,
            nodes_killed=scene.nodes_killed,
            finished=finished,
            seconds=round(time.monotonic() - started, 1),
        )
        return report, scene.history(started, ended) if options.keeps_history else None


class _Scene:
    """What goes on between the start and the end of the processes."""

    def __init__(self, site: Site, nodes: LocalNodes, workers: Workers, options: Options, display: Display) -> None:
        self._site = site
        self._nodes = nodes
        self._workers = workers
        self._deliveries = options.deliveries
        self._display = display
        self._journals = JournalReader(Path(site.journals))
        self._last_line = RETURNED if options.without == "middleware" else COMPLETED
        self._drill = Drill(
            [
                Step(0.2, 0.0, lambda: self._kill_worker(0)),
                Step(0.2, 1.0, lambda: self._start_worker(0, _AGAIN)),
                Step(0.4, 0.0, lambda: self._kill_node(1)),
                Step(0.6, 0.0, lambda: self._kill_worker(1)),
                Step(0.6, 1.0, lambda: self._start_worker(1, _AGAIN)),
                Step(0.6, 0.5, lambda: self._restart_node(1)),
            ]
        )
        self._is_working = False
        self._deeds: list[Deed] = []
        self.payments = list(dict.fromkeys(str(delivery.event["payment"]) for delivery in options.deliveries))
        self.sent = self.workers_killed = self.nodes_killed = self.cut_off = 0

    def play(self, deadline: float) -> bool:
        """Send and kill until all is done; False if that was not so before the deadline."""
        with closing(connect(self._site, ignore)) as broker:
            producer = Producer(broker)
            self._display.say("three nodes and a broker are started; messages are sent before anybody works on them")
            while time.monotonic() < deadline:
                self._send(producer)
                self._proceed()
                if self._drill.is_over and self.sent == len(self._deliveries) and producer.is_queue_empty():
                    self._display.update(self.sent, self._done())
                    return True
                time.sleep(_TICK)
        return False

    def _proceed(self) -> None:
        """Look how far the workers are, and do what is due."""
        self._workers.check()
        done = self._done()
        is_booted = self._journals.count(BOOTED) >= _WORKERS
        said = self._drill.advance(done / len(self.payments), time.monotonic()) if is_booted else None
        if said:
            self._display.say(said)
        elif not self._is_working and self.sent == self._sendable():
            self._start_workers()
        self._display.update(self.sent, done)

    def _done(self) -> int:
        self._journals.read()
        return len(self._journals.payments(self._last_line))

    def _start_workers(self) -> None:
        self._is_working = True
        for index in range(_WORKERS):
            self._start_worker(index, "is started")
        self._display.say(f"{_WORKERS} workers are started")

    def evidence(self) -> Evidence:
        """Collect what the workers, the nodes and the gateway have to say."""
        self._journals.read()
        recorded = None
        if self._site.without != "middleware":
            recorded = completions([node.url for node in self._nodes if node.alive], self.payments)
        events: Counter[tuple[str, str]] = Counter()
        for lines in self._journals.lines.values():
            events.update(lines)
        with closing(Gateway(self._site.ledger)) as gateway:
            return Evidence(events, gateway.requests(), gateway.charges(), recorded, len(self._nodes))

    def history(self, began: float, ended: float) -> History:
        """Collect what was done, and all that the workers wrote down."""
        names = [f"{node.url.removeprefix('redis://')}/0" for node in self._nodes]
        return History(began, ended, names, self._deeds, self._journals.entries(), self._last_line)

    def _sendable(self) -> int:
        return int(self._drill.sendable * len(self._deliveries))

    def _send(self, producer: Producer) -> None:
        until = max(self.sent, min(self._sendable(), self.sent + _BATCH))
        for delivery in self._deliveries[self.sent : until]:
            producer.send(delivery)
        self.sent = until

    def _kill_worker(self, index: int) -> str:
        """Kill in the worst moment, if it comes soon: while a payment is charged and its completion not recorded."""
        group = self._workers.group(index)
        give_up = time.monotonic() + _AIMING
        while self._is_between_payments(index) and time.monotonic() < give_up:
            time.sleep(_GLANCE)
        self._workers.kill(index)
        at = time.monotonic()
        self.workers_killed += 1
        started, charged = self._under_way(STARTED, group), self._under_way(CHARGED, group)
        self.cut_off += started
        text = f"worker {index + 1} gets SIGKILL: payments under way in it: {started}, charged: {charged}"
        return self._did(Deed(What.KILL_WORKER, index, at, text, group))

    def _is_between_payments(self, index: int) -> bool:
        """Freeze a worker and look; it stays frozen if a payment is charged and not completed in it."""
        self._workers.pause(index)
        time.sleep(_GLANCE)
        if self._under_way(CHARGED, self._workers.group(index)):
            return False
        self._workers.resume(index)
        return True

    def _under_way(self, kind: str, group: int) -> int:
        """Return how many payments got as far as this in a worker, and not to their end."""
        self._journals.read()
        return (self._journals.payments(kind, group) - self._journals.payments(self._last_line, group)).total()

    def _start_worker(self, index: int, text: str) -> str:
        at = time.monotonic()
        self._workers.start(index)
        return self._did(Deed(What.START_WORKER, index, at, f"worker {index + 1} {text}", self._workers.group(index)))

    def _kill_node(self, index: int) -> str:
        at = time.monotonic()
        self._nodes[index].kill()
        self.nodes_killed += 1
        text = f"node {index + 1} gets SIGKILL: the other two are a majority"
        return self._did(Deed(What.KILL_NODE, index, at, text))

    def _restart_node(self, index: int) -> str:
        self._nodes[index].restart()
        text = f"node {index + 1} is back with its data; it must wait before it votes again"
        return self._did(Deed(What.RESTART_NODE, index, time.monotonic(), text))

    def _did(self, deed: Deed) -> str:
        self._deeds.append(deed)
        return deed.text
