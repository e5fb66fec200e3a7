"""The crash matrix: a worker gets SIGKILL at each step of the flow, on both brokers; what came of the job is measured.

Each cell is a job with a next step and a stored result. One worker kills itself at the point, the next one works until
nothing moves any more. The table is written to the file that CRASH_MATRIX names, build/crash-matrix.md by default.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pytest
import redis
from dramatiq import Message
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.results.errors import ResultMissing

from dramatiq_idem.record import Record
from tests.tools.workbench import wait_until
from tests.tools.worker_rig import WorkerRig

pytestmark = [pytest.mark.timeout(90), pytest.mark.slow]

UNAVOIDABLE = {
    "after the effect": "no lock can help: the effect has to carry the key",
    "returned": "as above",
    "before completion": "as above; the next step is known by its id",
}
"""Points between the effect and its record: the body runs again there, and only there."""
POINTS = {
    "none": "control",
    "fetched": "fetched, before the claim",
    "claim on one node": "claim on 1 of 3 nodes",
    "claimed": "claimed, body not started",
    "before the effect": "in the body, before the effect",
    "after the effect": "in the body, after the effect",
    "returned": "returned, no after hook yet",
    "before completion": "after Results and Pipelines, before completion",
    "completion on one node": "completion on 1 of 3 nodes",
    "completed": "completed, before ack",
    "before ack": "in `before_ack`",
    "after ack": "after ack",
    "busy copy enqueued": "busy: copy enqueued, this delivery not acked",
    "retry enqueued": "failed attempt: retry enqueued, claim not given up",
    "given up": "failed attempt: claim given up, before ack",
}


@dataclass(frozen=True)
class Cell:
    """What came of one job."""

    effects: int
    next_steps: int
    result: str
    messages_left: int
    claims_left: int
    dead_letters: int


class Rig(WorkerRig):
    """A rig whose workers load the matrix's actors."""

    def __init__(self, directory, nodes, broker, results, **options):
        super().__init__(directory, nodes, broker, results, **options)
        module = Path(__file__).with_name("crash_actors.py").read_text("utf-8")
        (directory / "rig_actors.py").write_text(module, "utf-8")
        self.nodes = nodes

    def job(self, x=None, d=0.1):
        """Return a message whose result goes to the next step."""
        message = super().job(x, d)
        step = Message("default", "next_step", (), {}, {})
        return message.copy(options={"pipe_target": step.asdict()})

    def count(self, what):
        return sum(line["what"] == what for line in self.lines)

    def messages_left(self):
        """Return how many messages are queued, delayed or unacknowledged; of RabbitMQ not the last kind."""
        if isinstance(self.broker, RabbitmqBroker):
            return sum(self.broker.get_queue_message_counts("default")[:2])
        return self.broker.do_qsize("default")

    def claims_left(self):
        running = 0
        for url in self.nodes:
            with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0) as client:
                texts = [client.get(key) for key in client.scan_iter("idem:record:*")]
            running += any(Record.parse(text).state.value == "running" for text in texts if text)
        return running

    def settle(self):
        """Wait until the job is done and nothing has happened for a while: no line, no message."""
        self.wait(lambda: self.count("next") and self.count("effect"), 30.0)
        quiet_since, lines = time.monotonic(), -1

        def is_quiet():
            nonlocal quiet_since, lines
            if len(self.lines) != lines or self.messages_left():
                quiet_since, lines = time.monotonic(), len(self.lines)
            return time.monotonic() - quiet_since > 1.5

        self.wait(is_quiet, 30.0)

    def stop(self, process):
        """Let a worker end; what it had not acknowledged is back in the queue then."""
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, 30.0)

    def cell(self, message):
        try:
            result = repr(message.get_result(backend=self._backend))
        except ResultMissing:
            result = "missing"
        return Cell(
            self.count("effect"),
            self.count("next"),
            result,
            self.messages_left(),
            self.claims_left(),
            self.dead_letters,
        )


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], Cell]]:
    """Cells by point and broker; written down at the end."""
    cells: dict[tuple[str, str], Cell] = {}
    yield cells
    path = Path(os.environ.get("CRASH_MATRIX", "build/crash-matrix.md"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(cells), "utf-8")


def markdown(cells):
    names = [field.name.replace("_", " ") for field in fields(Cell)]
    lines = [
        f"Each cell: {', '.join(names)}.",
        "",
        "| killed | Redis | RabbitMQ | remark |",
        "| --- | --- | --- | --- |",
    ]
    for point, text in POINTS.items():
        found = [cells.get((point, broker)) for broker in ("redis", "rabbitmq")]
        shown = [", ".join(map(str, astuple(cell))) if cell else "not run" for cell in found]
        lines.append(f"| {text} | {' | '.join(shown)} | {UNAVOIDABLE.get(point, '')} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(params=["redis", "rabbitmq"])
def rig(request, tmp_path, shared, broker_url):
    """A rig on shared nodes and an empty broker."""
    url = broker_url
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq").vhost(secrets.token_hex(4))
    with Rig(tmp_path, shared.urls, url, broker_url) as rig:
        rig.kind = request.param
        yield rig


def run_cell(rig, point):
    """Run a job through a crash; return its message."""
    message = rig.job("fails first" if point in ("retry enqueued", "given up") else "x")
    if point == "busy copy enqueued":
        message = rig.job("x", d=4.0)
        rig.send(message)
        # One delivery at a time, so that the duplicate goes to the other worker.
        with rig.worker(threads=1, dramatiq_queue_prefetch="1") as holder:
            rig.wait(lambda: rig.count("start"))
            with rig.worker(KILL=point) as process:
                rig.wait_for_boots(2)
                rig.send(message)
                rig.wait_for_death(process)
            rig.settle()
            rig.stop(holder)
        return message
    rig.send(message)
    if point != "none":
        with rig.worker(KILL=point) as process:
            rig.wait_for_death(process)
    with rig.worker() as process:
        rig.settle()
        rig.stop(process)
    return message


@pytest.mark.parametrize("point", POINTS)
def test_crash(rig, table, point):
    """The job is never lost, and its body is repeated only where nobody could know that it took effect."""
    message = run_cell(rig, point)
    cell = table[point, rig.kind] = rig.cell(message)
    most = 2 if point in UNAVOIDABLE else 1
    assert 1 <= cell.effects <= most, rig.lines
    assert (cell.next_steps, cell.result) == (1, "42"), rig.lines
    assert (cell.messages_left, cell.claims_left, cell.dead_letters) == (0, 0, 0), rig.lines
    assert rig.killed == (point != "none")


def test_result_of_an_orphan_that_was_stored_stays(tmp_path, shared, broker_url):
    """Promise 4: killed between result and completion, it is left to people; whoever read 42 reads no failure then."""
    with Rig(tmp_path, shared.urls, broker_url, broker_url, actor={"idempotency_on_orphan": "dead_letter"}) as rig:
        message = rig.send(rig.job("x"))
        with rig.worker(KILL="before completion") as process:
            rig.wait_for_death(process)
        assert rig.result(message) == 42
        with rig.worker():
            rig.wait(lambda: rig.dead_letters)
            rig.wait(rig.is_drained)
        assert rig.result(message) == 42
        assert rig.count("effect") == 1
