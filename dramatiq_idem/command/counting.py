"""What workers count themselves, read at their Prometheus addresses: what the nodes cannot tell.

The nodes keep no count of duplicates; the workers' metrics do. A worker that started anew counts from zero.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redlock import clock

__all__ = ["COUNTS", "Counter", "Counts", "total_of"]

COUNTS = {
    "claims": r"dramatiq_idem_claims_total\{.*outcome=\"granted\".*\}",
    "duplicates": r"dramatiq_idem_duplicates_total\{.*\}",
    "busy": r"dramatiq_idem_deferrals_total\{.*reason=\"busy\".*\}",
    "no quorum": r"dramatiq_idem_deferrals_total\{.*reason=\"unavailable\".*\}",
    "takeovers": r"dramatiq_idem_takeovers_total\{.*\}",
    "leases renewed": r"dramatiq_idem_lease_renewals_total\{.*\}",
    "leases lost": r"dramatiq_idem_leases_lost_total\{.*\}",
    "double runs": r"dramatiq_idem_double_runs_total\{.*\}",
}
"""What is counted, and which samples of the workers' metrics are it."""
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Counts:
    """What the workers have counted.

    Args:
        totals: By name, since the workers started.
        rates: Per second since the last look; empty at the first one.
        unread: Addresses that could not be read, and why.
    """

    totals: Mapping[str, float]
    rates: Mapping[str, float]
    unread: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        counts = {name: {"total": total, "per_second": self.rates.get(name)} for name, total in self.totals.items()}
        return {"counts": counts, "unread": dict(self.unread)}

    def lines(self) -> list[str]:
        """Return it for people."""
        words = [
            f"{name} {total:,.0f}" + (f" ({self.rates[name]:.1f}/s)" if name in self.rates else "")
            for name, total in self.totals.items()
        ]
        failed = [f"{address} could not be read: {cause}" for address, cause in self.unread.items()]
        return ["of the workers: " + ", ".join(words), *failed]


class Counter:
    """Reads the addresses again and again.

    Args:
        addresses: Where workers serve their metrics.
        timeout: Seconds for each.
    """

    def __init__(self, addresses: Sequence[str], timeout: float) -> None:
        self._addresses = addresses
        self._timeout = timeout
        self._before: dict[str, tuple[float, dict[str, float]]] = {}

    def look(self) -> Counts:
        """Read all addresses, one after the other."""
        totals, rates, unread = dict.fromkeys(COUNTS, 0.0), dict[str, float](), dict[str, str]()
        for address in self._addresses:
            try:
                text = _fetch(address, self._timeout)
            except (OSError, ValueError) as error:
                unread[_masked(address)] = _masked(str(error))
                continue
            now, found = clock(), {name: total_of(text, pattern) for name, pattern in COUNTS.items()}
            before = self._before.get(address)
            self._before[address] = now, found
            for name, total in found.items():
                totals[name] += total
                if before is not None:
                    grown = total - before[1][name] if total >= before[1][name] else total
                    rates[name] = rates.get(name, 0.0) + grown / max(1e-3, now - before[0])
        return Counts(totals, rates, unread)


def total_of(text: str, pattern: str) -> float:
    """Return the sum of the samples in Prometheus' text format whose name and labels match."""
    values = (float(value) for value in re.findall(rf"^{pattern} (\S+)", text, re.MULTILINE))
    return sum(value for value in values if math.isfinite(value))


def _fetch(address: str, timeout: float) -> str:
    if not address.startswith(("http://", "https://")):
        raise ValueError("it must be an http:// or https:// address")
    with urllib.request.urlopen(address, timeout=timeout) as answer:  # noqa: S310 - the scheme was looked at
        return str(answer.read(_MOST_BYTES).decode(errors="replace"))


def _masked(text: str) -> str:
    return re.sub(r"//[^/\s]*@", "//***@", text)
