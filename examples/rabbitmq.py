"""RabbitMQ: the broker must confirm what is published, else a message that is put back could vanish.

BROKER_URL=amqp://guest:guest@127.0.0.1:5672 python examples/rabbitmq.py redis://a:6379 redis://b:6379 redis://c:6379
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from dramatiq_idem import Idempotency

NODES = sys.argv[1:] or os.environ["DRAMATIQ_IDEM_NODES"].split(",")
URL = os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672")

broker = RabbitmqBroker(url=URL, confirm_delivery=True)  # a worker refuses to boot without it
dramatiq.set_broker(broker)
Idempotency(NODES).install(broker)

sent: list[str] = []


@dramatiq.actor(queue_name="mails", idempotency_key="mail:{kind}:{customer}")
def mail(kind: str, customer: str) -> None:
    """Send a mail of a kind to a customer, once a day: that is how long a completion is remembered by default."""
    sent.append(f"{kind} to {customer}")


def main() -> None:
    """Send one mail three times, and another one."""
    message = mail.send("welcome", "ada")
    broker.enqueue(message.copy())
    mail.send("welcome", "ada")
    mail.send("welcome", "grace")
    worker = dramatiq.Worker(broker, worker_threads=4)
    worker.start()
    broker.join("mails", min_successes=3, idle_time=500, timeout=60_000)
    worker.stop()
    broker.close()
    print(f"mails: {', '.join(sorted(sent))}")


if __name__ == "__main__":
    main()
