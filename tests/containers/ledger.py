"""What came of the payments that were sent, and what must not be found in it: pure, but for `read`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dramatiq_idem.demo.gateway import Gateway
from dramatiq_idem.record import Record, State

__all__ = ["Ledger", "client", "read", "records"]


@dataclass(frozen=True)
class Ledger:
    """Counts per payment.

    Args:
        sent: The payments.
        requests: How often a body asked the gateway to charge each.
        charges: How often the gateway did.
        completions: On how many nodes each is recorded as completed.
        queued: Messages that the broker still has, delayed and unacknowledged ones too.
        dead: Messages among the dead letters.
    """

    sent: Collection[str]
    requests: Counter[str]
    charges: Counter[str]
    completions: Counter[str]
    queued: int = 0
    dead: int = 0

    def wrongs(self, *, quorum: int = 2, runs_once: bool = True) -> dict[str, list[str]]:
        """Return the payments for which a promise is broken, by promise; all empty when all is well.

        Args:
            quorum: On how many nodes a completion has to be recorded.
            runs_once: No worker died, so that no body has a reason to run again.
        """
        found = {
            "lost": [payment for payment in self.sent if payment not in self.charges],
            "charged twice": [payment for payment, times in self.charges.items() if times > 1],
            "not recorded": [payment for payment in self.sent if self.completions[payment] < quorum],
            "never sent": [payment for payment in self.requests if payment not in self.sent],
        }
        if runs_once:
            found["ran twice"] = [payment for payment, times in self.requests.items() if times > 1]
        return {name: payments for name, payments in found.items() if payments}


def read(sent: Collection[str], broker_url: str, node_urls: Sequence[str]) -> Ledger:
    """Read the gateway's ledger, the broker's queues, and the records of the nodes."""
    gateway = Gateway(f"{broker_url}/1")
    with client(broker_url) as broker:
        queued = sum(broker.hlen(f"dramatiq:payments{kind}.msgs") for kind in ("", ".DQ"))
        dead = broker.zcard("dramatiq:payments.XQ")
    try:
        requests, charges = gateway.requests(), gateway.charges()
    finally:
        gateway.close()
    done = Counter(
        payment
        for url in node_urls
        for payment, record in records(url).items()
        if record is not None and record.state is State.DONE
    )
    return Ledger(sent, requests, charges, done, queued, dead)


def records(url: str) -> dict[str, Record]:
    """Return a node's records by payment."""
    with client(url) as node:
        keys = sorted(node.scan_iter("idem:record:charge:payment:*", count=1_000))
        texts = node.mget(keys) if keys else []
        return {key.rpartition(":")[2]: Record.parse(text) for key, text in zip(keys, texts, strict=True) if text}


def client(url: str) -> Any:
    """Return a client that tries once and not for long."""
    return redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=2.0, socket_connect_timeout=2.0, retry=Retry(NoBackoff(), 0)
    )
