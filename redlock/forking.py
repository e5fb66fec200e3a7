"""After a fork the child must neither use its parent's connections nor wait for its parent's threads."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

__all__ = ["starts_afresh_in_children"]


class _StartsAfresh(Protocol):
    def after_fork(self) -> None:
        """Start afresh in a child process."""


_logger = logging.getLogger(__name__)
_KNOWN: weakref.WeakSet[_StartsAfresh] = weakref.WeakSet()


def starts_afresh_in_children(each: _StartsAfresh) -> None:
    """Have an object told in every child process, as long as somebody holds it."""
    _KNOWN.add(each)


def _tell() -> None:
    for each in list(_KNOWN):
        try:
            each.after_fork()
        except Exception:  # noqa: PERF203 - each for itself
            _logger.exception("a child process does not start afresh")


os.register_at_fork(after_in_child=_tell)
