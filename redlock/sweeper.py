"""Comes by while nodes that were away have still to be told something, and nobody else asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from redlock.helper import Helper

__all__ = ["Sweeper"]

_PAUSE = 0.05
"""Seconds between two looks."""


class Sweeper:
    """One job at a time on the helper, again and again until nothing is owed.

    Args:
        helper: Whose thread does it.
        is_owing: Whether there is still something to do.
        come_by: Does what can be done now.
    """

    def __init__(self, helper: Helper, is_owing: Callable[[], bool], come_by: Callable[[], None]) -> None:
        self._helper = helper
        self._is_owing = is_owing
        self._come_by = come_by
        self._mutex = threading.Lock()
        self._is_on = False

    def begin(self) -> None:
        """Come by from now on, if something is owed."""
        with self._mutex:
            if self._is_on or not self._is_owing():
                return
            self._is_on = True
        try:
            self._helper.do(self._sweep, may_wait=True)
        except BaseException as error:
            self._is_on = False  # whoever asks next begins again
            if not isinstance(error, RuntimeError):  # no thread is to be had
                raise

    def _sweep(self) -> None:
        try:
            time.sleep(_PAUSE)
            self._come_by()
        finally:
            self._is_on = False
            self.begin()
