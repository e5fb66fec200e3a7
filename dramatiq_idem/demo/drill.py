"""What is killed when: by the share of payments that are done, so that a slow machine sees the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Drill", "Step"]

_AHEAD: Final = 0.5
"""How far sending may be ahead of the next step, as a share: there is work in the queue when something dies."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Args:
        share: Payments that must be done before, as a share of all.
        pause: Seconds that must have passed since the step before.
        act: Does it, and says what was done.
    """

    share: float
    pause: float
    act: Callable[[], str]


class Drill:
    """The steps of a run, done one after another as they come due.

    Args:
        steps: In order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self._last = 0.0

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return not self._steps

    @property
    def sendable(self) -> float:
        """Share of the messages that may be sent by now."""
        return min(1.0, self._steps[0].share + _AHEAD) if self._steps else 1.0

    def advance(self, share: float, now: float) -> str | None:
        """Do the next step if it is due.

        Args:
            share: Payments that are done, as a share of all.
            now: A clock's reading in seconds.
        Returns:
            What was done; None if nothing was due.
        """
        if not self._steps or share < self._steps[0].share or now - self._last < self._steps[0].pause:
            return None
        self._last = now
        return self._steps.pop(0).act()
