"""Sends payments, one in five of them twice, says from time to time how many were charged, and judges at the end."""  # noqa: INP001 - a script

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection

from dramatiq.common import current_millis
from payments import broker, charge, gateway

from dramatiq_idem.demo.traffic import plan_deliveries

PAYMENTS = int(os.environ.get("PAYMENTS", "1000"))
PER_SECOND = float(os.environ.get("PAYMENTS_PER_SECOND", "50"))
REPORT_EVERY = 10.0
PATIENCE = 600.0


def report(sent: Collection[str]) -> tuple[int, int]:
    """Print how it stands; return how many payments of those sent were not charged, and how many were charged twice."""
    charges = gateway.charges()
    open_, twice = sum(payment not in charges for payment in sent), sum(times > 1 for times in charges.values())
    requests = gateway.requests().total()
    sys.stdout.write(f"payments charged: {len(charges)}, charged twice: {twice}, requests: {requests}, open: {open_}\n")
    sys.stdout.flush()
    return open_, twice


def main() -> None:
    """Send, wait until the queue is empty, and report: then an open payment is a lost one."""
    sent, next_report = {}, time.monotonic() + REPORT_EVERY
    for delivery in plan_deliveries(PAYMENTS, seed=current_millis()):
        payment = delivery.event["payment"]
        message = sent[payment].copy() if delivery.kind == "copy" else charge.message(delivery.event)
        broker.enqueue(message)
        sent[payment] = message
        time.sleep(1 / PER_SECOND)
        if time.monotonic() > next_report:
            next_report = time.monotonic() + REPORT_EVERY
            report(sent)
    give_up = time.monotonic() + PATIENCE
    while broker.do_qsize("payments") and time.monotonic() < give_up:
        time.sleep(0.5)
    lost, twice = report(sent)
    sys.stdout.write(f"lost: {lost}, charged twice: {twice}\n")
    sys.exit(1 if lost or twice else 0)


if __name__ == "__main__":
    main()
