"""Who takes part in the records model: nodes, deliveries, a repair, the operator; and how rough a schedule is."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.records_rules import Faults, Record, Reply

__all__ = ["Chooser", "Delivery", "Forgetting", "Node", "Repair", "Weather"]

Item = TypeVar("Item")


@dataclass
class Node:
    """One node; `awaited` are attempts that may still count a reply from before it forgot, `leases` their tokens."""

    record: Record | None = None
    has_rights: bool = True
    identity: int = 0
    awaited: set[tuple[int, int]] = field(default_factory=set)
    awaits_forget: bool = False
    leases: set[int] = field(default_factory=set)


@dataclass
class Delivery:
    """One delivery of the message; its number is its token."""

    token: int
    todo: list[int]
    sent_in: int  # generation when it was sent
    acked_before: frozenset[int]  # generations whose completion was acknowledged when its claim began
    phase: str = "claiming"
    attempt: int = 0
    reads: int = 0
    replies: dict[int, Reply] = field(default_factory=dict)
    held: dict[int, Record] = field(default_factory=dict)  # done records by node, as the completion saw them
    record: Record | None = None  # what it completes with, or repairs with
    generation: int = 0  # what its claim asks for at least
    takeovers: int = 0
    lowest_wins: bool = False
    then: str = ""  # phase after a read repair

    def enter(self, phase: str, todo: Iterable[int] = ()) -> None:
        """Begin a phase with a new attempt."""
        self.phase, self.todo, self.attempt = phase, list(todo), self.attempt + 1

    @property
    def is_over(self) -> bool:
        """Say whether nothing more comes from this delivery."""
        return self.phase == "over"

    @property
    def is_running(self) -> bool:
        """Say whether the body was entered and the completion is not recorded yet."""
        return self.phase in ("running", "body done", "completing") or self.then == "completing"


@dataclass
class Repair:
    """A repair under way: whom it mends, which nodes it still reads."""

    node: int
    identity: int
    sources: list[int]


@dataclass
class Forgetting:
    """The operator's `forget` under way."""

    tombstone: Record
    todo: list[int]


class Chooser:
    """Draws the choices within a step: random and noted, or read back from an earlier step."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._tape: Sequence[float] | None = None
        self.drawn: list[float] = []

    def begin_step(self, tape: Sequence[float] | None = None) -> None:
        """Start a step, reading from `tape` if one is given."""
        self._tape, self.drawn = tape, []

    def fraction(self) -> float:
        """Return a number from 0 to below 1."""
        if self._tape is None:
            drawn = self._source.random()
        else:
            drawn = self._tape[len(self.drawn)] if len(self.drawn) < len(self._tape) else 0.999
        self.drawn.append(drawn)
        return drawn

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.fraction() < probability

    def take(self, items: list[Item]) -> Item:
        """Remove one item and return it."""
        return items.pop(int(self.fraction() * len(items)))


@dataclass(frozen=True)
class Weather:
    """How rough one schedule is; drawn from its seed."""

    loss: float
    deliveries: int
    pace: int  # weight of a delivery's own steps
    lease_ends: int
    kills: int
    repair: int  # weight of a repair's steps
    amnesias: int  # the most that happen
    forget: int

    @classmethod
    def of(cls, source: random.Random, faults: Faults) -> Weather:
        """Draw the weather; some schedules have no amnesia or no forget, so that other faults get room."""
        return cls(
            loss=source.choice((0.0, 0.05, 0.15, 0.3)),
            deliveries=source.choice((faults.deliveries, (faults.deliveries + 1) // 2)),
            pace=source.choice((4, 12)),
            lease_ends=source.choice((1, 2, 4)),
            kills=source.choice((0, 1)),
            repair=source.choice((4, 20)),
            amnesias=source.choice((0, 1, 2, 4)) if faults.amnesia else 0,
            forget=source.choice((0, 1)) if faults.forget else 0,
        )
