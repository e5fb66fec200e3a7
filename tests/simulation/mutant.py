"""A rule that is taken out of the shipping code: the simulation has to notice it in time.

A mutant is a replacement of text in a shipping file (or an assumption broken) and the promises of which one must break.
Where a schedule would break without the mutant too, it does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.shipping import Edit, loaded

__all__ = ["BUDGET", "Finding", "Mutant", "hunt"]

BUDGET = 4_000
"""Schedules within which a mutant has to be found."""


@dataclass(frozen=True)
class Mutant:
    """One rule that is taken out.

    Args:
        name: What is wrong then.
        mode: "lock" or "claim".
        promises: Beginnings of the violations that count.
        edits: Replacements in the shipping code.
        options: For `play`: profile, nodes, broken assumptions.
    """

    name: str
    mode: str
    promises: tuple[str, ...]
    edits: tuple[Edit, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A mutant that was found: after how many schedules, at which seed, by what."""

    mutant: Mutant
    schedules: int
    seed: int
    violation: str

    @property
    def command(self) -> str:
        """The command that shows it again."""
        return f'python -m tests.simulation.replay --mutant "{self.mutant.name}" --seed {self.seed}'

    def __str__(self) -> str:
        return f"{self.mutant.name}, after {self.schedules:,} schedules, by {self.violation[:2]}"


def hunt(mutant: Mutant, budget: int = BUDGET, start: int = 0) -> Finding | None:
    """Play schedules until the mutant breaks one of its promises; None if it does not."""
    options = dict(mutant.options)
    with loaded(f"{mutant.mode}_world", mutant.edits) as world:
        for number, seed in enumerate(range(start, start + budget), 1):
            outcome = world.play(seed, **options)
            found = next((each for each in outcome.violations if each.startswith(mutant.promises)), None)
            if found and not _breaks_anyway(mutant, seed):
                return Finding(mutant, number, seed, found)
    return None


def _breaks_anyway(mutant: Mutant, seed: int) -> bool:
    """Whether the schedule breaks with the shipping code as it is, and the assumptions kept."""
    options = {name: value for name, value in mutant.options.items() if name != "steps"}
    with loaded(f"{mutant.mode}_world", ()) as world:
        return any(each.startswith(mutant.promises) for each in world.play(seed, **options).violations)
