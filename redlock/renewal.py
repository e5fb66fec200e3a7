"""Which leases to extend now, which are lost: the bookkeeping of a renewer, without waiting and without IO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redlock.lease import Term
from redlock.plan import Plan, together

__all__ = ["Holding", "Renewals"]

_TOGETHER = 0.1
"""Share of its ttl by which a lease may be extended early, so that it travels with others."""


class Holding(Protocol):
    """What is kept alive."""

    @property
    def term(self) -> Term:
        """The life of the lease."""

    def renewal(self) -> Plan[bool]:
        """Return a plan that extends the lease once and notes the outcome in its term."""

    def on_lost(self, cause: str) -> None:
        """Be told, once, that the lease is lost."""


class Renewals:
    """The leases that are kept alive, until they are removed, capped or lost."""

    def __init__(self) -> None:
        self._holdings: dict[int, Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, holding: Holding) -> None:
        """Keep a lease alive from now on."""
        self._holdings[id(holding)] = holding

    def remove(self, holding: Holding) -> bool:
        """Stop keeping a lease alive; return whether it was."""
        return self._holdings.pop(id(holding), None) is not None

    def clear(self) -> None:
        """Stop keeping anything alive."""
        self._holdings.clear()

    def until_next(self, now: float) -> float | None:
        """Return the seconds until something is due; None while there is nothing."""
        moments = [min(holding.term.renew_at, holding.term.valid_until) for holding in self._holdings.values()]
        return max(0.0, min(moments) - now) if moments else None

    def due(self, now: float) -> list[Holding]:
        """Return what has to be extended or given up now, with what is due soon; nothing while nothing is due."""
        if self.until_next(now) != 0.0:
            return []
        return [
            holding
            for holding in self._holdings.values()
            if holding.term.renew_at - holding.term.ttl * _TOGETHER <= now or holding.term.valid_until <= now
        ]

    @staticmethod
    def extend(due: list[Holding]) -> Plan[None]:
        """Extend all that are due, in one pipeline per node; a lease that was held long enough is left to end."""
        for holding in due:
            if holding.term.is_capped:
                holding.term.renew_at = holding.term.valid_until
        results = yield from together([holding.renewal() for holding in due if not holding.term.is_capped])
        for error in results:
            if isinstance(error, Exception):
                raise error

    def lost(self, due: list[Holding]) -> list[Callable[[], None]]:
        """Forget what is lost; return who has to be told so."""
        return [_teller(holding, holding.term.cause) for holding in due if holding.term.cause and self.remove(holding)]


def _teller(holding: Holding, cause: str | None) -> Callable[[], None]:
    return lambda: holding.on_lost(cause or "")
