"""A payment gateway as seen from a job: it takes an idempotency key, and charges a key once.

Its ledger stands on a Redis database of its own. Requests and charges are written down apart: a run that is repeated
after a crash shows as a second request, and must not show as a second charge.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, Final

import redis

__all__ = ["Gateway"]

_LEDGER: Final = ("gateway:requests", "gateway:charges", "gateway:keys")

_CHARGE: Final = """
-- KEYS: 1 requests, 2 charges, 3 charge per idempotency key. ARGV: 1 payment, 2 new charge, 3 idempotency key or ''.
-- Returns the charge that was made, now or before.
redis.call('RPUSH', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then
  local before = redis.call('HGET', KEYS[3], ARGV[3])
  if before then return before end
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[2])
end
redis.call('RPUSH', KEYS[2], ARGV[1])
return ARGV[2]
"""


class Gateway:
    """A client of the gateway.

    Args:
        url: Redis database of the ledger.
    """

    def __init__(self, url: str) -> None:
        self._ledger: Any = redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0)
        self._charge = self._ledger.register_script(_CHARGE)

    def charge(self, payment: str, idempotency_key: str | None) -> str:
        """Charge a payment, once per key; without a key, each time. Returns the id of the charge."""
        return str(self._charge(_LEDGER, (payment, f"ch_{secrets.token_hex(12)}", idempotency_key or "")))

    def requests(self) -> Counter[str]:
        """Return how often each payment was asked for."""
        return Counter(self._ledger.lrange(_LEDGER[0], 0, -1))

    def charges(self) -> Counter[str]:
        """Return how often each payment was charged."""
        return Counter(self._ledger.lrange(_LEDGER[1], 0, -1))

    def close(self) -> None:
        """Close the connections."""
        self._ledger.close()
