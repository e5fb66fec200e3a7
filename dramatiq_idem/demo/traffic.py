"""Which payments are sent, and which of them twice; the same for the same seed."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Delivery", "PaymentEvent", "plan_deliveries"]

PaymentEvent: TypeAlias = dict[str, str | int]

_FARTHEST = 60
"""A duplicate follows at most this many messages behind the first one: some meet it while it runs, some when it is
done."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to send.

    Args:
        event: Its argument.
        kind: "first"; "copy" for the same message again, as from a producer that did not hear the broker's answer;
            "resent" for another message with the same event, as from a webhook that is delivered twice.
    """

    event: PaymentEvent
    kind: str


def plan_deliveries(payments: int, seed: int) -> list[Delivery]:
    """Return the messages in the order of sending: every fifth payment twice, by turns as a copy and resent."""
    rng = random.Random(seed)
    placed: list[tuple[float, Delivery]] = []
    for index, event in enumerate(_events(payments, rng)):
        placed.append((index, Delivery(event, "first")))
        if index % 5 == 0:
            kind = "resent" if index % 10 else "copy"
            placed.append((index + rng.uniform(0.1, _FARTHEST), Delivery(event, kind)))
    placed.sort(key=lambda item: item[0])
    return [delivery for _, delivery in placed]


def _events(count: int, rng: random.Random) -> Iterator[PaymentEvent]:
    customers = [f"cus_{_letters(rng, 14)}" for _ in range(max(1, count // 8))]
    for index in range(count):
        yield {
            "id": f"evt_{_letters(rng, 24)}",
            "payment": f"pay_{_letters(rng, 14)}{index:05d}",
            "customer": rng.choice(customers),
            "amount": rng.randrange(100, 25_000),
            "currency": rng.choice(("eur", "gbp", "usd")),
        }


def _letters(rng: random.Random, count: int, alphabet: Sequence[str] = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choices(alphabet, k=count))
