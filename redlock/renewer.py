"""One thread that keeps all leases of a process alive, in one pipeline per node and round.

When a lease is due, when to try again and when it is lost is decided in lease.py; here is only the waiting.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Protocol

from redlock.driver import Nodes, clock
from redlock.lease import Term
from redlock.plan import Plan

__all__ = ["Holding", "Renewer"]

_TOGETHER = 0.1
"""Share of its ttl by which a lease may be extended early, so that it travels with others."""

_logger = logging.getLogger("redlock")


class Holding(Protocol):
    """What the renewer keeps alive."""

    @property
    def term(self) -> Term:
        """The life of the lease."""

    def renewal(self) -> Plan[bool]:
        """Return a plan that extends the lease once and notes the outcome in its term."""

    def on_lost(self, cause: str) -> None:
        """Be told, once, that the lease is lost."""


class Renewer:
    """Extends leases until they are removed, capped or lost.

    Args:
        nodes: Where the leases are.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.start_afresh()
        _RENEWERS.add(self)

    def start_afresh(self) -> None:
        """Hold nothing; also in a child process, where the leases are the parent's."""
        self._changed = threading.Condition()
        self._holdings: dict[int, Holding] = {}
        self._round: dict[int, Holding] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, holding: Holding) -> None:
        """Keep a lease alive from now on."""
        with self._changed:
            self._holdings[id(holding)] = holding
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redlock-renewer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, holding: Holding) -> None:
        """Stop to extend a lease, and wait for an extension that is under way (at most for its time-out)."""
        with self._changed:
            self._holdings.pop(id(holding), None)
            if threading.current_thread() is not self._thread:
                while id(holding) in self._round:
                    self._changed.wait(1.0)

    def close(self) -> None:
        """Stop to extend anything; the leases run out."""
        with self._changed:
            self._closed = True
            self._holdings.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread and thread is not threading.current_thread():
            thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not (due := self._due()):
                    self._changed.wait(self._until_next())
                if self._closed:
                    return
                self._round = due
            try:
                self._extend(list(due.values()))
            except Exception:
                _logger.exception("a renewal round failed; it is tried again")
                for holding in due.values():
                    holding.term.postponed()
            finally:
                with self._changed:
                    self._round = {}
                    self._changed.notify_all()

    def _until_next(self) -> float | None:
        moments = [min(holding.term.renew_at, holding.term.valid_until) for holding in self._holdings.values()]
        return max(0.001, min(moments) - clock()) if moments else None

    def _due(self) -> dict[int, Holding]:
        """Return what has to be extended now, with what is due soon; nothing while nothing is due."""
        now = clock()
        terms = [holding.term for holding in self._holdings.values()]
        if not any(min(term.renew_at, term.valid_until) <= now for term in terms):
            return {}
        return {
            key: holding
            for key, holding in self._holdings.items()
            if holding.term.renew_at - holding.term.ttl * _TOGETHER <= now or holding.term.valid_until <= now
        }

    def _extend(self, due: list[Holding]) -> None:
        for holding in due:
            if holding.term.is_capped:
                holding.term.renew_at = holding.term.valid_until
        self._nodes.run_together([holding.renewal() for holding in due if not holding.term.is_capped])
        for holding in due:
            if (cause := holding.term.cause) is not None:
                with self._changed:
                    mine = self._holdings.pop(id(holding), None)
                if mine is not None:
                    holding.on_lost(cause)


_RENEWERS: weakref.WeakSet[Renewer] = weakref.WeakSet()


def _forget_in_child() -> None:
    for renewer in list(_RENEWERS):
        renewer.start_afresh()


os.register_at_fork(after_in_child=_forget_in_child)
