"""Where time, tokens and pauses come from; the rules get them passed in."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterator

import tenacity
from tenacity.wait import wait_base

from redlock.plan import Clock

__all__ = ["clock", "new_token", "pauses"]


def _pick_clock() -> Clock:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boottime is None else functools.partial(time.clock_gettime, boottime)


clock: Clock = _pick_clock()
"""Seconds that count while the machine is suspended, where the system has such a clock; else monotonic ones."""


def new_token() -> str:
    """Return a fresh owner token: 128 random bits as 22 characters."""
    return secrets.token_urlsafe(16)


def pauses(wait: wait_base) -> Iterator[float]:
    """Return the pauses between attempts, as a tenacity wait strategy gives them, in seconds."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    while True:
        yield float(wait(state))
        state.attempt_number += 1
