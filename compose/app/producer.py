"""Sends payments, one in five of them twice, and says from time to time how often each was charged."""  # noqa: INP001 - a script

from __future__ import annotations

import os
import sys
import time

from dramatiq.common import current_millis
from payments import broker, charge, gateway

from dramatiq_idem.demo.traffic import plan_deliveries

PAYMENTS = int(os.environ.get("PAYMENTS", "1000"))
PER_SECOND = float(os.environ.get("PAYMENTS_PER_SECOND", "50"))
REPORT_EVERY = 10.0
PATIENCE = 600.0


def report() -> bool:
    """Print how it stands; tell whether no payment was charged twice."""
    charges = gateway.charges()
    twice = sum(times > 1 for times in charges.values())
    requests = gateway.requests().total()
    sys.stdout.write(f"payments charged: {len(charges)}, charged twice: {twice}, requests: {requests}\n")
    sys.stdout.flush()
    return not twice


def main() -> None:
    """Send, wait until the queue is empty, and report."""
    sent, next_report = {}, time.monotonic() + REPORT_EVERY
    for delivery in plan_deliveries(PAYMENTS, seed=current_millis()):
        payment = delivery.event["payment"]
        message = sent[payment].copy() if delivery.kind == "copy" else charge.message(delivery.event)
        broker.enqueue(message)
        sent[payment] = message
        time.sleep(1 / PER_SECOND)
        if time.monotonic() > next_report:
            next_report = time.monotonic() + REPORT_EVERY
            report()
    give_up = time.monotonic() + PATIENCE
    while (left := broker.do_qsize("payments")) and time.monotonic() < give_up:
        time.sleep(0.5)
    sys.exit(0 if report() and not left else 1)


if __name__ == "__main__":
    main()
