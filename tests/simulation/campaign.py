"""Many schedules in a row: what was seen, what broke, and how to look at it again."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.simulation.faults import Fault
from tests.simulation.world import Outcome

__all__ = ["Report", "base_seed", "campaign", "explained", "is_full", "shrunk"]


def is_full() -> bool:
    """Whether to play as many schedules as a verification wants, not only as many as a quick test run has time for.

    Raises:
        ValueError: The environment variable SIMULATION is neither "quick" nor "full".
    """
    size = os.environ.get("SIMULATION", "quick")
    if size not in ("quick", "full"):
        raise ValueError(f"SIMULATION must be quick or full, not {size!r}")
    return size == "full"


def base_seed() -> int:
    """Return the first seed: SIMULATION_SEED; else a random one in a full run, the same one in a quick run.

    A quick run stands between every change and its landing: what it finds has to be the change's doing.
    """
    given = os.environ.get("SIMULATION_SEED")
    if given is None and not is_full():
        return 1
    return int(given or secrets.randbelow(10**9))


@dataclass
class Report:
    """What came of a campaign.

    Args:
        schedules: How many were played.
        seconds: How long that took.
        seen: How often things happened.
        broken: The schedules in which a promise broke.
    """

    schedules: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.schedules / self.seconds if self.seconds else 0.0
        bound = f"at most {300 / self.schedules:.3g} % of schedules (95 %)" if self.schedules else "nothing"
        facts = ", ".join(f"{name} {count}" for name, count in sorted(self.seen.items()))
        return (
            f"{self.schedules} schedules in {self.seconds:.1f} s ({rate:.0f}/s), {len(self.broken)} with violations"
            f"{'' if self.broken else ': ' + bound}\n  {facts}"
        )


def campaign(world: ModuleType, seeds: Iterable[int], most_broken: int = 3, **options: Any) -> Report:
    """Play a schedule for each seed, until some broke.

    Args:
        world: `lock_world` or `claim_world`.
        seeds: Of the schedules.
        most_broken: After how many to stop.
        **options: For `play`.
    """
    report = Report()
    began = time.perf_counter()
    for seed in seeds:
        outcome = world.play(seed, **options)
        report.schedules += 1
        report.seen.update(outcome.seen)
        if outcome.violations:
            report.broken.append(outcome)
            if len(report.broken) >= most_broken:
                break
    report.seconds = time.perf_counter() - began
    return report


def shrunk(world: ModuleType, outcome: Outcome, **options: Any) -> Outcome:
    """Leave faults out, one at a time, as long as the same promise still breaks."""
    promise = outcome.violations[0][:2]
    best = outcome
    index = 0
    while index < len(best.faults):
        fewer: Sequence[Fault] = [*best.faults[:index], *best.faults[index + 1 :]]
        tried = world.play(outcome.seed, faults=fewer, **options)
        if any(each.startswith(promise) for each in tried.violations):
            best = tried
        else:
            index += 1
    return best


def explained(world: ModuleType, outcome: Outcome, **options: Any) -> str:
    """Return what somebody needs to see why a schedule broke: seed, violations, the least faults, the command."""
    least = shrunk(world, outcome, **options)
    kept = ",".join(str(outcome.faults.index(fault)) for fault in least.faults) or "none"
    mode = world.__name__.rpartition(".")[2].removesuffix("_world")
    named = "".join(f" --{name} {value}" for name, value in options.items() if name in ("nodes", "profile") and value)
    faults = "\n".join(f"  {outcome.faults.index(fault)}: {fault}" for fault in least.faults) or "  none"
    return (
        f"seed {outcome.seed}: " + "\n  ".join(outcome.violations[:3]) + f"\nfaults that are enough:\n{faults}\n"
        f"replay: python -m tests.simulation.replay --mode {mode} --seed {outcome.seed}{named} --faults {kept}"
    )
