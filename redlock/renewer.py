"""One thread that keeps all leases of a process alive, in one pipeline per node and round.

What is due and what is lost is decided in renewal.py; here is only the waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from redlock.clock import clock
from redlock.driver import Nodes
from redlock.forking import starts_afresh_in_children
from redlock.renewal import Holding, Renewals

__all__ = ["Renewer"]

_PAUSE = 0.05
"""Seconds before a round that failed as a whole is tried again."""

_logger = logging.getLogger("redlock")


class Renewer:
    """Extends leases until they are removed, capped or lost.

    Args:
        nodes: Where the leases are.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.after_fork()
        starts_afresh_in_children(self)

    def after_fork(self) -> None:
        """Hold nothing; also in a child process, where the leases are the parent's."""
        self._changed = threading.Condition()
        self._renewals = Renewals()
        self._round: list[Holding] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._renewals)

    def add(self, holding: Holding) -> None:
        """Keep a lease alive from now on."""
        with self._changed:
            self._renewals.add(holding)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redlock-renewer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, holding: Holding) -> None:
        """Stop to extend a lease, and wait for an extension that is under way (at most for its time-out)."""
        with self._changed:
            self._renewals.remove(holding)
            if threading.current_thread() is not self._thread:
                while any(other is holding for other in self._round):
                    self._changed.wait(1.0)

    def close(self) -> None:
        """Stop to extend anything; the leases run out."""
        with self._changed:
            self._closed = True
            self._renewals.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread and thread is not threading.current_thread():
            thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not (due := self._renewals.due(clock())):
                    self._changed.wait(self._renewals.until_next(clock()))
                if self._closed:
                    return
                self._round = due
            try:
                self._nodes.run(Renewals.extend(due))
            except Exception:
                _logger.exception("a renewal round failed; it is tried again")
                for holding in due:
                    holding.term.postponed()
                threading.Event().wait(_PAUSE)
            with self._changed:
                self._round = []
                self._changed.notify_all()
                tellers = self._renewals.lost(due)
            if tellers:  # on a thread of their own: whoever is told may take his time, and the others' leases may not
                threading.Thread(target=_tell_all, args=(tellers,), name="redlock-lost", daemon=True).start()


def _tell_all(tellers: list[Callable[[], None]]) -> None:
    for tell in tellers:
        try:
            tell()
        except Exception:  # noqa: PERF203 - each is told
            _logger.exception("a callback for a lost lease failed")
