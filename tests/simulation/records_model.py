"""Model of the completion records: seeded random schedules of deliveries, faults and repairs around one key.

A delivery claims the key on every node, runs the body when a quorum granted, and records its completion; one script per
step decides on each node (`claim`, `complete`, `give_up`, `undo`, `put`, `copy`). Around them leases end, workers die,
messages and replies are lost, an operator forgets the key, nodes forget everything and are repaired.

Each rule of the design is a switch in `Rules`, so that a test can take one out and see the search find why it is there.

Checked:
    O1    no run whose claim began after a completion of its generation was acknowledged;
    O3    once a result was settled for a generation (completion acknowledged, or a delivery skipped on it), no other
          result is settled, stored or replayed;
    LOST  no delivery is skipped unless a run of its generation (or a later one) completed.

Assumed: looking at the record and storing the body's result is one step; a node does not forget while a second run of
a generation is unsettled or may start (the first lost its lease), or while both runs' done records are still on some
nodes (`Faults.amnesia_in_double_run` lifts that and shows the two results that the design admits); as many nodes
that remember as a repair reads are always left: N - min(W, majority) + 1.

Replay one seed: python -m tests.simulation.records_model --seed 7 --without keep_done
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tests.simulation.records_actors import Chooser, Weather
from tests.simulation.records_rules import Faults, Rules
from tests.simulation.records_world import Operation, World

__all__ = ["Faults", "Rules", "Schedule", "Weather", "main", "run", "search"]

STEPS = 110  # per schedule: enough for five deliveries, a repair and a forget

Step = tuple[Operation, Sequence[float]]


@dataclass(frozen=True)
class Schedule:
    """Everything that decides how a world goes."""

    seed: int
    rules: Rules
    faults: Faults
    steps: tuple[Step, ...]

    def replay(self) -> World:
        """Run the steps again; one that can no longer happen is left out."""
        source = random.Random(self.seed)
        world = World(self.rules, self.faults, Weather.of(source, self.faults), Chooser(source))
        for operation, tape in self.steps:
            if operation in world.operations():
                world.choose.begin_step(tape)
                world.perform(operation)
            if world.violation:
                break
        return world

    def shortened(self) -> Schedule:
        """Return a schedule that breaks the same promise and from which no single step can be left out."""
        promise = self.replay().violation.split(":")[0]
        shortest = self
        for size in (16, 8, 4, 2, 1, 1):
            start = 0
            while start < len(shortest.steps):
                shorter = replace(shortest, steps=shortest.steps[:start] + shortest.steps[start + size :])
                if shorter.replay().violation.startswith(f"{promise}:"):
                    shortest = shorter
                else:
                    start += size
        return shortest

    @property
    def command(self) -> str:
        """Return the command that replays this seed."""
        words = [f"python -m tests.simulation.records_model --seed {self.seed}"]
        words += [f"--without {rule.name}" for rule in fields(Rules) if not getattr(self.rules, rule.name)]
        for option in fields(Faults):
            value, name = getattr(self.faults, option.name), option.name.replace("_", "-")
            if value != option.default:
                words.append({True: f"--{name}", False: f"--no-{name}"}.get(value, f"--{name} {value}"))
        return " ".join(words)

    def __str__(self) -> str:
        world = self.replay()
        removed = [rule.name for rule in fields(Rules) if not getattr(self.rules, rule.name)]
        lines = [f"seed {self.seed}, without {', '.join(removed) or 'nothing'}: {world.violation or 'no violation'}"]
        return "\n".join(lines + [f"  {' '.join(map(str, parts))}" for parts in world.story])


def run(seed: int, rules: Rules, faults: Faults) -> tuple[World, Schedule]:
    """Play the schedule of one seed."""
    source = random.Random(seed)
    world = World(rules, faults, Weather.of(source, faults), Chooser(source))
    steps: list[Step] = []
    for _ in range(STEPS):
        operations = world.operations()
        if not operations:
            break
        operation = source.choice(operations)
        world.choose.begin_step()
        world.perform(operation)
        steps.append((operation, world.choose.drawn))
        if world.violation:
            break
    return world, Schedule(seed, rules, faults, tuple(steps))


def search(rules: Rules, faults: Faults, schedules: int, first_seed: int = 0) -> tuple[int, Schedule | None]:
    """Play seeded schedules until one breaks a promise.

    Returns:
        How many were played, and the schedule that broke a promise (not yet shortened) or None.
    """
    for count, seed in enumerate(range(first_seed, first_seed + schedules), 1):
        world, schedule = run(seed, rules, faults)
        if world.violation:
            return count, schedule
    return schedules, None


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay one seed from the command line."""
    parser = argparse.ArgumentParser(description="Replay one schedule of the completion records model.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--without", action="append", default=[], choices=[rule.name for rule in fields(Rules)])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--write-quorum", type=int, default=2)
    parser.add_argument("--deliveries", type=int, default=6)
    parser.add_argument("--no-amnesia", dest="amnesia", action="store_false")
    parser.add_argument("--no-forget", dest="forget", action="store_false")
    parser.add_argument("--amnesia-in-double-run", action="store_true")
    parser.add_argument("--whole", action="store_true", help="print every step, not the shortest schedule")
    options = parser.parse_args(arguments)
    faults = Faults(**{name.name: getattr(options, name.name) for name in fields(Faults)})
    world, schedule = run(options.seed, Rules().without(*options.without), faults)
    print(schedule.shortened() if world.violation and not options.whole else schedule)


if __name__ == "__main__":
    main()
