"""A broker with the middleware and one worker, in this process: real threads, real nodes, a log of what ran.

bench = Workbench(nodes.urls, lease=1_500)
job = bench.job()                       # job(x=None, d=0.0, out=42)
bench.start()
bench.twice(job.message(1))
bench.join()
assert bench.starts() == 1
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import dramatiq
import redis
from dramatiq import Message, Worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Middleware
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend, StubBackend
from dramatiq.results.errors import ResultMissing

from dramatiq_idem import Idempotency, RedlockStore
from dramatiq_idem.record import Record

__all__ = ["Log", "Workbench", "threads_of", "wait_until"]

_STORE_OPTIONS = {"namespace", "write_quorum", "node_timeout", "max_ttl", "restart_guard"}


def wait_until(condition: Any, timeout: float = 15.0) -> Any:
    """Return the condition's value once it is true; a bound for what never happens, not a measurement."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s")
        time.sleep(0.01)
    return value


class Log:
    """What bodies ran, by key, in the order it happened."""

    def __init__(self, entries: Sequence[tuple[str, Any]] = ()) -> None:
        self.entries: list[tuple[str, Any]] = list(entries)

    def add(self, what: str, key: Any) -> None:
        """Note that a body started or ended."""
        self.entries.append((what, key))  # atomic, and in order

    def starts(self, key: Any = ...) -> int:
        """Return how many bodies started, of one key or of all."""
        return sum(what == "start" and key in (..., found) for what, found in self.entries)

    def ends(self, key: Any = ...) -> int:
        """Return how many bodies ended."""
        return sum(what == "end" and key in (..., found) for what, found in self.entries)

    def most_at_once(self) -> int:
        """Return the most bodies of one key that overlapped."""
        running: dict[Any, int] = {}
        most = 0
        for what, key in self.entries:
            running[key] = running.get(key, 0) + (1 if what == "start" else -1)
            most = max(most, running[key])
        return most


class _Spy(Middleware):
    """Notes what is enqueued and skipped."""

    def __init__(self) -> None:
        self.enqueued: list[Message[Any]] = []
        self.skipped: list[str] = []

    def before_enqueue(self, broker: dramatiq.Broker, message: Message[Any], delay: int | None) -> None:
        self.enqueued.append(message)

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.skipped.append(message.message_id)


class Workbench:
    """See the module.

    Args:
        nodes: URLs of the middleware's nodes, which may vote already.
        broker_url: A Redis for broker and results; default: a broker in memory.
        threads: Of the worker.
        middleware: More middleware, behind all others.
        options: Of the middleware and its store; the default lease is 1.5 s.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        broker_url: str | None = None,
        *,
        threads: int = 8,
        middleware: Sequence[Middleware] = (),
        **options: Any,
    ) -> None:
        self.events: list[Any] = []
        self.log = Log()
        self.store = RedlockStore(
            nodes, observer=self.events.append, **{name: options.pop(name) for name in _STORE_OPTIONS & options.keys()}
        )
        if broker_url is None:
            self.broker: Any = StubBroker(fail_fast_default=False)
            self.backend: Any = StubBackend()
        else:
            self.broker = RedisBroker(url=broker_url, heartbeat_timeout=60_000, maintenance_chance=0)
            self.backend = RedisBackend(client=redis.Redis.from_url(broker_url, socket_timeout=10.0))
        self.broker.add_middleware(Results(backend=self.backend))
        self.spy = _Spy()
        for each in (*middleware, self.spy):
            self.broker.add_middleware(each)
        options = {"lease": 1_500, "retention": 60_000} | options
        self.idempotency = Idempotency(store=self.store, observer=self.events.append, **options).install(self.broker)
        self.worker = Worker(self.broker, worker_timeout=50, worker_threads=threads)
        self._urls = list(nodes)
        self._started = False

    # -- jobs

    def job(self, actor_name: str = "job", **options: Any) -> dramatiq.Actor[..., Any]:
        """Declare the standard actor; it logs under its argument x."""

        def job(x: Any = None, d: float = 0.0, out: Any = 42) -> Any:
            with self.logged(x):
                time.sleep(d)
            return out

        return self.actor(job, actor_name=actor_name, **options)

    def actor(self, fn: Any, **options: Any) -> dramatiq.Actor[..., Any]:
        """Declare an actor whose results are stored."""
        return dramatiq.actor(fn, broker=self.broker, **{"store_results": True, **options})

    def logged(self, key: Any) -> Any:
        """Log a body's start and end."""
        return _Logged(self.log, key)

    # -- messages

    def twice(self, message: Message[Any]) -> Message[Any]:
        """Enqueue a message and a copy of it."""
        self.broker.enqueue(message)
        self.broker.enqueue(message.copy())
        return message

    def start(self) -> Workbench:
        """Start the worker."""
        self._started = True
        self.worker.start()
        return self

    def join(self, timeout: float = 15.0) -> None:
        """Wait until nothing is queued or delayed."""
        self.broker.join("default", timeout=round(timeout * 1000))
        if isinstance(self.broker, StubBroker):
            self.worker.join()

    def result(self, message: Message[Any], timeout: float = 10.0) -> Any:
        """Return a message's result; waits for it."""
        return message.get_result(backend=self.backend, block=True, timeout=round(timeout * 1000))

    def has_result(self, message: Message[Any]) -> bool:
        """Tell whether anything at all is stored."""
        try:
            message.get_result(backend=self.backend)
        except ResultMissing:
            return False
        return True

    # -- what happened

    def starts(self, key: Any = ...) -> int:
        """Return how many bodies started."""
        return self.log.starts(key)

    @property
    def dead_letters(self) -> int:
        """How many messages were dead-lettered."""
        if isinstance(self.broker, StubBroker):
            return len(self.broker.dead_letters)
        return int(self.broker.client.zcard("dramatiq:default.XQ"))

    def told(self, name: str) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if type(event).__name__ == name]

    def records(self, name: str = "*") -> list[Record | None]:
        """Return what each node has under a record's name; None where it has nothing."""
        found: list[Record | None] = []
        for url in self._urls:
            with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0) as client:
                keys = sorted(client.scan_iter(f"idem:record:{name}"))
                texts = [client.get(key) for key in keys]
            found += [Record.parse(text) for text in texts if text] or [None]
        return found

    def states(self, name: str = "*") -> set[str]:
        """Return the states of a record on the nodes."""
        return {record.state.value if record else "none" for record in self.records(name)}

    # -- life

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._started:
            self.worker.stop(timeout=10_000)
        self.broker.close()
        self.store.close()
        if isinstance(self.broker, RedisBroker):
            self.broker.client.close()
            self.backend.client.close()


class _Logged:
    def __init__(self, log: Log, key: Any) -> None:
        self._log = log
        self._key = key

    def __enter__(self) -> None:
        self._log.add("start", self._key)

    def __exit__(self, *_exception: object) -> None:
        self._log.add("end", self._key)


def threads_of(prefix: str) -> list[str]:
    """Return the names of this process's threads that begin with a prefix."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]
