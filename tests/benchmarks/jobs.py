"""The broker and the actors that the measured workers run; imported by ``dramatiq``, steered by the environment.

BENCH_BROKER is the broker's address and BENCH_NAMESPACE its namespace; BENCH_NODES are the nodes of the middleware,
none for no middleware; BENCH_LOG is a folder where payments note what happened, each line written at once:

    runs    <payment> for each body that came to its end
    hooks   <what became of the delivery> <seconds in our hooks before the body> <and after it>
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq import Broker, Middleware, Worker
from dramatiq.broker import MessageProxy
from dramatiq.brokers.redis import RedisBroker

from dramatiq_idem import Idempotency

logging.basicConfig(level=logging.ERROR)  # each duplicate is a warning, and so is the node that is killed
_NODES = os.environ["BENCH_NODES"].split()
_LOG = os.environ.get("BENCH_LOG")


class Announce(Middleware):
    """Tells the bench which processes are ready."""

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        broker.client.sadd(f"{broker.namespace}:booted", os.getpid())


class Timed(Idempotency):
    """The middleware, with a clock around its hooks."""

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        began = time.perf_counter()
        outcome = "run"
        try:
            super().before_process_message(broker, message)
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            message.bench = [outcome, time.perf_counter() - began, 0.0]

    def after_process_message(self, broker: Broker, message: MessageProxy, **outcome: Any) -> None:
        began = time.perf_counter()
        try:
            super().after_process_message(broker, message, **outcome)
        finally:
            message.bench[2] += time.perf_counter() - began

    def before_ack(self, broker: Broker, message: MessageProxy) -> None:
        began = time.perf_counter()
        super().before_ack(broker, message)
        if bench := message.__dict__.get("bench"):  # none where a delayed message goes back to its queue
            outcome, before, after = bench
            _note("hooks", f"{outcome} {before:.6f} {after + time.perf_counter() - began:.6f}")


def _open(name: str) -> int:
    return os.open(Path(_LOG) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


_files = {name: _open(name) for name in ("runs", "hooks")} if _LOG else {}


def _note(name: str, line: str) -> None:
    os.write(_files[name], f"{line}\n".encode())  # one write is one line, whichever thread or process it is


broker = RedisBroker(url=os.environ["BENCH_BROKER"], namespace=os.environ["BENCH_NAMESPACE"])
broker.add_middleware(Announce())
if _NODES:
    (Timed if _LOG else Idempotency)(_NODES).install(broker)
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing() -> None:
    """Take no time."""


@dramatiq.actor(**({"idempotency_key": "payment:{payment}"} if _NODES else {}))
def pay(payment: int) -> None:
    """Take five milliseconds, and note that it is done."""
    time.sleep(0.005)
    _note("runs", str(payment))
