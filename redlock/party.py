"""What one thread asks at once, and how it is woken when it is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from redlock.member import Member
from redlock.plan import Broadcast, Clock
from redlock.question import Question

__all__ = ["Party"]


class Party:
    """The questions that one thread asks together.

    Args:
        broadcasts: What is asked.
        members: The nodes.
        clock: Seconds.
        on_hurry: As for `Question`.
    """

    __slots__ = ("_wake", "deadline", "questions")

    def __init__(
        self,
        broadcasts: Sequence[Broadcast],
        members: Sequence[Member],
        clock: Clock,
        on_hurry: Callable[[float], None],
    ) -> None:
        self.questions = [Question(broadcast, members, clock, on_hurry) for broadcast in broadcasts]
        self.deadline = max([question.overdue_at for question in self.questions])
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def is_open(self) -> bool:
        """Whether an answer is missing."""
        for question in self.questions:  # noqa: SIM110 - asked at every step, and this is the fastest way
            if question.is_open:
                return True
        return False

    def give_up(self) -> None:
        """Settle what is open with the votes that are there."""
        for question in self.questions:
            question.settle()

    def wake(self) -> None:
        """End the sleep of the thread that waits, or its next one; only the leading thread calls this."""
        if self._wake.locked():
            self._wake.release()

    def sleep(self, timeout: float) -> None:
        """Wait to be woken, for so many seconds at most."""
        self._wake.acquire(timeout=max(0.0, timeout))
