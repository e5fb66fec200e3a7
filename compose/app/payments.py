"""The application: a broker, the middleware, one actor. Run by `dramatiq payments`."""  # noqa: INP001 - the image has no package of ours here

from __future__ import annotations

import os
import random
import time
from urllib.parse import quote

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.prometheus import Prometheus

from dramatiq_idem import Idempotency, current_run
from dramatiq_idem.demo.gateway import Gateway
from dramatiq_idem.metrics import PrometheusObserver, combine
from redlock import log_event

BROKER_URL = os.environ["BROKER_URL"]
PASSWORD = os.environ.get("NODE_PASSWORD", "")
LOGIN = f":{quote(PASSWORD, safe='')}@" if PASSWORD else ""
NODES = [f"redis://{LOGIN}{address}" for address in os.environ["NODES"].split()]

# Dead workers are noticed within seconds, and what they ran is taken over then, so that you can watch it; by default
# both take longer.
broker = RedisBroker(url=BROKER_URL, heartbeat_timeout=10_000, maintenance_chance=100_000)
dramatiq.set_broker(broker)
Idempotency(NODES, lease=10_000, observer=combine(log_event, PrometheusObserver())).install(broker)
broker.add_middleware(Prometheus(), before=Idempotency)
gateway = Gateway(f"{BROKER_URL}/1")


@dramatiq.actor(queue_name="payments", idempotency_key="payment:{event[payment]}")
def charge(event: dict[str, str | int]) -> None:
    """Charge a payment; the key goes to the gateway, for a run that is repeated after a crash."""
    run = current_run()
    if run is None:
        raise RuntimeError("to be run by a worker")
    time.sleep(random.uniform(0.01, 0.1))
    gateway.charge(str(event["payment"]), run.key)
    time.sleep(random.uniform(0.01, 0.1))
