"""The one thread that a process keeps for a group of nodes: for what blocks, and for what nobody waits for."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable

__all__ = ["Helper"]

_logger = logging.getLogger(__name__)


class Helper:
    """Does jobs on a thread of its own, one after the other; the thread begins with the first, and stays.

    It ends with `end`, or when nobody holds this object any more.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = 0
        weakref.finalize(self, self._jobs.put, None)

    def do(self, job: Callable[[], None], *, may_wait: bool) -> None:
        """Do a job soon: when it is its turn; or at once, on a thread that ends with it, if the helper is busy."""
        with self._mutex:
            is_for_us = may_wait or not self._left
            if is_for_us and self._thread is None:
                self._thread = _started(_work, self._jobs, weakref.ref(self))
            self._left += is_for_us
        if is_for_us:
            self._jobs.put(job)
        else:
            _started(job)

    def done(self) -> None:
        """Note that a job has come to its end."""
        with self._mutex:
            self._left -= 1

    def end(self) -> None:
        """Let the thread end after what it has to do; another job starts another."""
        with self._mutex:
            if self._thread is not None:
                self._jobs.put(None)
            self._thread = None


def _started(target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name="redlock-helper", daemon=True)
    thread.start()
    return thread


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None], ours: weakref.ref[Helper]) -> None:
    """Do jobs; between them nothing here keeps the helper, or what it works for, alive."""
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            _logger.exception("what should be done beside the user's threads failed")
        del job
        if (helper := ours()) is not None:
            helper.done()
        del helper
