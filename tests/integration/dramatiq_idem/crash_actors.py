"""The actors module of the crash matrix: worker processes load a copy of it, and one kills itself at a named point.

All points are in the middleware, the observer and the store that stand here: nothing in the product knows of them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import dramatiq
import redis
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from dramatiq_idem import Idempotency, RedlockStore
from dramatiq_idem.claims import COMPLETE
from dramatiq_idem.policies import DEFERRALS

SETTINGS: dict[str, Any] = json.loads(os.environ["RIG"])
KILL = os.environ.get("KILL", "")


def note(what, key, **more):
    """Append a whole line to the log, whatever kills us next."""
    line = json.dumps({"what": what, "key": key, "pid": os.getpid(), **more}) + "\n"
    with Path(SETTINGS["log"]).open("a") as log:
        log.write(line)


def kill_at(point):
    """End this worker with all its processes, once per rig."""
    if point != KILL:
        return
    try:
        os.close(os.open(SETTINGS["killed"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note("killed", point)
    os.killpg(0, signal.SIGKILL)
    time.sleep(60)


def wait_for_the_kill():
    """Keep the next step back until the job's worker is killed: the kill is not to hit the step, too."""
    give_up = time.monotonic() + 10.0
    while KILL and not Path(SETTINGS["killed"]).exists() and time.monotonic() < give_up:
        time.sleep(0.02)


def is_job(message):
    """Tell whether a delivery is the job itself: not its next step, not its stay in the delay queue."""
    return message.actor_name == "job" and message.queue_name == "default"


class Front(Middleware):
    """In front of everything, where only observers may stand."""

    def before_process_message(self, broker, message):
        if is_job(message):
            kill_at("fetched")
        elif message.actor_name == "next_step":
            wait_for_the_kill()

    def after_ack(self, broker, message):
        if is_job(message):
            kill_at("after ack")


class Back(Middleware):
    """Behind everything: the last to be asked before the body, the first after it."""

    def after_worker_boot(self, broker, worker):
        note("booted", None)

    def before_process_message(self, broker, message):
        if is_job(message):
            kill_at("claimed")

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if is_job(message):
            kill_at("returned")

    def before_ack(self, broker, message):
        if is_job(message):
            kill_at("before ack")

    def after_enqueue(self, broker, message, delay):
        if message.actor_name == "job" and DEFERRALS in message.options:
            kill_at("busy copy enqueued")


class Store(RedlockStore):
    """Dies between the steps, or with a step done on one node of all."""

    def on_first_node(self, command):
        with redis.Redis.from_url(SETTINGS["nodes"][0], decode_responses=True) as client:
            reply = client.eval(command.script.text, len(command.keys), *command.keys, *command.args)
        assert reply[0] == 1, reply

    def claim(self, request):
        if request.name.startswith("job:") and KILL == "claim on one node":
            rules, token = self._rules, "0" * 32
            self.on_first_node(rules._claim_command(request, token, 0, rules._undo_command(request, token)))
            kill_at("claim on one node")
        return super().claim(request)

    def complete(self, claim, result):
        if not claim.request.name.startswith("job:"):
            return super().complete(claim, result)
        kill_at("before completion")
        if KILL == "completion on one node":
            key = self._settings.key("record", claim.request.name)
            record = claim.record.completed(result)
            with redis.Redis.from_url(SETTINGS["nodes"][0], decode_responses=True) as client:
                retention = claim.request.retention_ms
                reply = client.eval(COMPLETE.text, 1, key, record.text(), record.generation, retention)
            assert reply[0] == 1, reply
            kill_at("completion on one node")
        recorded = super().complete(claim, result)
        kill_at("completed")
        return recorded

    def abandon(self, claim, state, reason):
        kill_at("retry enqueued")
        given_up = super().abandon(claim, state, reason)
        kill_at("given up")
        return given_up


if SETTINGS["broker"].startswith("amqp"):
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker: Any = RabbitmqBroker(url=SETTINGS["broker"], confirm_delivery=True)
else:
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=SETTINGS["broker"], heartbeat_timeout=1_500, maintenance_chance=1_000_000)
dramatiq.set_broker(broker)
broker.add_middleware(Results(backend=RedisBackend(client=redis.Redis.from_url(SETTINGS["results"]))))
for middleware in (CurrentMessage(), Back()):
    broker.add_middleware(middleware)


def observe(event):
    """Write events down, so that a failure can be read."""
    note(type(event).__name__, str(event))


store = Store(SETTINGS["nodes"], observer=observe)
Idempotency(store=store, observers=[Front], observer=observe, **SETTINGS["options"]).install(broker)
broker.middleware.insert(0, Front())


@dramatiq.actor(store_results=True, **SETTINGS["actor"])
def job(x=None, d=0.0, out=42):
    """Take effect once; x says whether the first attempt is to fail."""
    note("start", x)
    time.sleep(d)
    kill_at("before the effect")
    if x == "fails first" and not any("failed" in line for line in Path(SETTINGS["log"]).read_text().splitlines()):
        note("failed", x)
        raise ValueError("the first attempt")
    note("effect", x)
    kill_at("after the effect")
    note("end", x)
    return out


@dramatiq.actor
def next_step(value):
    """Stand for what goes on with the result."""
    note("next", value)
