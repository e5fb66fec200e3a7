"""A thread that repairs, for as long as there is something to repair."""

from __future__ import annotations

import logging
import os
import threading

from dramatiq_idem.repair import Repair
from redlock import Nodes

__all__ = ["Repairer"]

_PAUSES = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each attempt of one background repair; claims that meet the node again begin another."""

_logger = logging.getLogger("dramatiq_idem")


class Repairer:
    """Repairs in the background once a node was met that cannot speak for the records, until none is left."""

    def __init__(self, nodes: Nodes, repair: Repair) -> None:
        self._nodes = nodes
        self._repair = repair
        self._closed = threading.Event()
        self._mutex = threading.Lock()
        self._running_in = 0

    def wake(self) -> None:
        """See to it that somebody repairs; returns at once."""
        with self._mutex:
            if self._running_in == os.getpid() or self._closed.is_set():
                return
            self._running_in = os.getpid()
        threading.Thread(target=self._run, name="dramatiq-idem-repair", daemon=True).start()

    def _run(self) -> None:
        try:
            for pause in _PAUSES:
                if self._closed.wait(pause) or self._nodes.run(self._repair.repair()):
                    break
        except Exception:
            _logger.exception("a repair broke off; it is begun anew when it is needed again")
        finally:
            with self._mutex:
                self._running_in = 0

    def close(self) -> None:
        """Begin no further repair."""
        self._closed.set()
