"""Real `dramatiq` worker processes: an actors module in a directory, a log that survives SIGKILL, kill points.

    rig = WorkerRig(tmp_path, nodes.urls, broker_url)
    message = rig.job(1, d=0.5)
    rig.send(message)
    with rig.worker(KILL="body"):
        rig.wait_for_death()
    with rig.worker():
        rig.wait(lambda log: log.ends())

Kill points end the whole process group with SIGKILL, once per rig:
    body             in the body, half of d seconds after its start
    behind_body      in an `after_process_message` behind the middleware's: the body has returned, nothing is recorded
    before_ack       the completion is recorded, the message not acknowledged
    claimed          the claim is granted, the body not started
    next_enqueue     inside of the broker's `enqueue` of a pipeline's next step, before it is sent
    next_enqueued    the same, after it was sent
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from dramatiq import Message
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results.backends import RedisBackend

import dramatiq_idem
from tests.tools.workbench import Log, wait_until

__all__ = ["WorkerRig"]

_ROOT = Path(dramatiq_idem.__file__).parent.parent

_MODULE = '''
import json, logging, os, signal, threading, time

import dramatiq, redis
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from dramatiq_idem import Idempotency, current_run

SETTINGS = json.loads(os.environ["RIG"])
if "SAME_PID" in os.environ:  # a container that starts again has the same host name, and its process the same id
    os.getpid = lambda: int(os.environ["SAME_PID"])
KILL = os.environ.get("KILL", "")


def note(what, key, **more):
    line = json.dumps({"what": what, "key": key, "pid": os.getpid(), **more}) + "\\n"
    with open(SETTINGS["log"], "a") as log:  # one write, appended: whole lines whoever writes
        log.write(line)


def kill_at(point):
    if point != KILL:
        return
    try:
        os.close(os.open(SETTINGS["killed"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note("killed", point)
    os.killpg(0, signal.SIGKILL)
    time.sleep(60)


class Killer(Middleware):
    def before_process_message(self, broker, message):
        if message.actor_name == "job":
            kill_at("claimed")

    def before_enqueue(self, broker, message, delay):
        if message.actor_name == "after" and message.queue_name == "default":
            kill_at("next_enqueue")

    def after_enqueue(self, broker, message, delay):
        if message.actor_name == "after" and message.queue_name == "default":
            kill_at("next_enqueued")

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if exception is None and message.actor_name == "job":
            kill_at("behind_body")

    def before_ack(self, broker, message):
        if message.queue_name == "default" and message.actor_name == "job":
            kill_at("before_ack")


class Closer(Middleware):
    """Closes the consumer's connection under a running body, once, as a server does."""

    def __init__(self):
        self.worker = None

    def after_worker_boot(self, broker, worker):
        self.worker = worker
        note("booted", None)

    def close_connections(self):
        for consumer in self.worker.consumers.values():
            connection = consumer.consumer.connection
            connection.add_callback_threadsafe(connection.close)


if SETTINGS["broker"].startswith("amqp"):
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=SETTINGS["broker"], confirm_delivery=True)
else:
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=SETTINGS["broker"], heartbeat_timeout=1_500, maintenance_chance=1_000_000)
dramatiq.set_broker(broker)
closer = Closer()
backend = RedisBackend(client=redis.Redis.from_url(SETTINGS["results"]))
for middleware in (CurrentMessage(), Results(backend=backend), closer, Killer()):
    broker.add_middleware(middleware)
Idempotency(SETTINGS["nodes"], observer=lambda event: note(type(event).__name__, str(event)),
            **SETTINGS["options"]).install(broker)


@dramatiq.actor(store_results=True, **SETTINGS["actor"])
def job(x=None, d=0.0, out=42):
    note("start", x, takeovers=current_run().takeovers)
    if KILL == "close" and not os.path.exists(SETTINGS["killed"]):
        open(SETTINGS["killed"], "w").close()
        threading.Timer(d / 4, closer.close_connections).start()
    until = time.monotonic() + d
    while time.monotonic() < until:  # short steps: an interrupt arrives between two
        time.sleep(min(0.05, d))
        if time.monotonic() > until - d / 2:
            kill_at("body")
    kill_at("body")
    if "RAISE" in os.environ:
        raise ValueError("too late")
    note("end", x)
    return out


@dramatiq.actor(store_results=True)
def after(value):
    note("after", value)
    return value
'''


class WorkerRig:
    """See the module.

    Args:
        directory: Of this test alone.
        nodes: URLs of the middleware's nodes, which may vote already.
        broker: URL of the broker: a Redis or a RabbitMQ.
        results: URL of a Redis for results; default: the broker's.
        actor: More options of the actor.
        options: Of the middleware; the default lease is 1.5 s.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[str],
        broker: str,
        results: str | None = None,
        *,
        actor: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._directory = directory
        self._log_path = directory / "log.jsonl"
        self._log_path.touch()
        self._settings = {
            "log": str(self._log_path),
            "killed": str(directory / "killed"),
            "broker": broker,
            "results": results or broker,
            "nodes": list(nodes),
            "options": {"lease": 1_500, "retention": 60_000} | options,
            "actor": {"min_backoff": 1, "max_backoff": 1} | (actor or {}),
        }
        (directory / "rig_actors.py").write_text(_MODULE)
        if broker.startswith("amqp"):
            self.broker: Any = RabbitmqBroker(url=broker, confirm_delivery=True, middleware=[])
        else:
            self.broker = RedisBroker(url=broker, middleware=[])
        self.broker.declare_queue("default")
        self._results = redis.Redis.from_url(self._settings["results"], socket_timeout=10.0)
        self._backend = RedisBackend(client=self._results)
        self._starts = 0

    # -- messages

    def job(self, x: Any = None, d: float = 0.0, out: Any = 42) -> Message[Any]:
        """Return a message to the standard actor."""
        return Message("default", "job", (), {"x": x, "d": d, "out": out}, {})

    def send(self, message: Message[Any]) -> Message[Any]:
        """Enqueue a message; may be done again with the same."""
        self.broker.enqueue(message)
        return message

    def result(self, message: Message[Any], timeout: float = 15.0) -> Any:
        """Return a message's result; waits for it."""
        return message.get_result(backend=self._backend, block=True, timeout=round(timeout * 1000))

    def is_drained(self) -> bool:
        """Tell whether nothing is queued, delayed or unacknowledged."""
        if isinstance(self.broker, RabbitmqBroker):
            return sum(self.broker.get_queue_message_counts("default")[:2]) == 0
        return self.broker.do_qsize("default") == 0

    @property
    def dead_letters(self) -> int:
        """How many messages were dead-lettered."""
        if isinstance(self.broker, RabbitmqBroker):
            return int(self.broker.get_queue_message_counts("default")[2])
        return int(self.broker.client.zcard("dramatiq:default.XQ"))

    # -- what happened

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All whole lines of the log; the end of one may be under way."""
        return [json.loads(line) for line in self._log_path.read_text().rpartition("\n")[0].splitlines()]

    @property
    def log(self) -> Log:
        """The log's starts and ends."""
        return Log([(line["what"], line["key"]) for line in self.lines if line["what"] in ("start", "end")])

    def told(self, name: str) -> list[str]:
        """Return the events of a kind, as text."""
        return [line["key"] for line in self.lines if line["what"] == name]

    @property
    def killed(self) -> bool:
        """Whether the kill point was reached."""
        return bool(self.told("killed"))

    def wait(self, condition: Callable[[], Any], timeout: float = 25.0) -> Any:
        """Wait for a condition; a failure shows what the workers said."""
        try:
            return wait_until(condition, timeout)
        except AssertionError as error:
            logs = [path.read_text(errors="replace")[-3000:] for path in sorted(self._directory.glob("worker*.log"))]
            raise AssertionError("\n".join([str(error), self._log_path.read_text(), *logs])) from None

    # -- workers

    @contextlib.contextmanager
    def worker(
        self, *arguments: str, processes: int = 1, threads: int = 4, **environment: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run the `dramatiq` command; afterwards it is killed with all its processes."""
        self._starts += 1
        command = [sys.executable, "-m", "dramatiq", "rig_actors", "-p", str(processes), "-t", str(threads), *arguments]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), str(self._directory)]),
            "RIG": json.dumps(self._settings),
            **environment,
        }
        with (self._directory / f"worker{self._starts}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)

    def wait_for_boots(self, processes: int) -> None:
        """Wait until so many worker processes consume."""
        self.wait(lambda: len(self.told("booted")) >= processes)

    def wait_for_death(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a worker has killed itself at its kill point."""
        self.wait(lambda: process.poll() is not None)
        assert self.killed, "the worker ended by itself"

    def close(self) -> None:
        """Close our own connections."""
        self.broker.close()
        if isinstance(self.broker, RedisBroker):
            self.broker.client.close()
        self._results.close()

    def __enter__(self) -> WorkerRig:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
