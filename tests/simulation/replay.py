"""Play one schedule again and draw what happened.

python -m tests.simulation.replay --mode lock --seed 7 [--nodes 5] [--profile mixed] [--faults 0,2] [--mutant "…"]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from tests.simulation.mutants import MUTANTS
from tests.simulation.shipping import loaded
from tests.simulation.world import Outcome

__all__ = ["main", "timeline"]


def timeline(outcome: Outcome, width: int = 150) -> str:
    """Return the schedule as text: a lane for each process and node, time downwards."""
    lanes = sorted({who for _, who, _ in outcome.lines if who}, key=lambda who: (who[0] != "p", who[0], int(who[1:])))
    head = " " * 11 + "".join(f"{lane:3}" for lane in lanes)
    rows = []
    for time, who, text in outcome.lines:
        marks = "".join(("*" if "***" in text else "o") + "  " if lane == who else "|  " for lane in lanes)
        rows.append(f"{time:10.4f} {marks} {who:3} {text.replace('*** ', '')[:width]}")
    return "\n".join([head, *rows])


@contextlib.contextmanager
def _world(mode: str, mutant: str | None) -> Iterator[tuple[ModuleType, dict[str, Any]]]:
    """Give the world to play in, and the options that go with it."""
    if mutant is None:
        yield importlib.import_module(f"tests.simulation.{mode}_world"), {}
        return
    chosen = next((each for each in MUTANTS if each.name == mutant), None)
    if chosen is None:
        raise SystemExit(f"no mutant {mutant!r}; there are: " + ", ".join(each.name for each in MUTANTS))
    with loaded(f"{chosen.mode}_world", chosen.edits) as world:
        yield world, dict(chosen.options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a schedule; return 1 if a promise breaks in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replay", description="Play one schedule again.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mode", choices=("lock", "claim"), default="lock")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--profile", help="default: the one that goes with the seed")
    parser.add_argument("--plot", help="the faults that belong together; default: as the seed has it")
    parser.add_argument("--mutant", help="a rule that is taken out")
    parser.add_argument("--faults", help='numbers of the faults to keep, "none" for none; default all')
    chosen = parser.parse_args(arguments)
    with _world(chosen.mode, chosen.mutant) as (world, options):
        options |= {
            name: value for name in ("nodes", "profile", "plot") if (value := getattr(chosen, name)) is not None
        }
        faults = None
        if chosen.faults is not None:
            planned = world.play(chosen.seed, **options).faults
            faults = [] if chosen.faults == "none" else [planned[int(number)] for number in chosen.faults.split(",")]
        outcome = world.play(chosen.seed, faults=faults, traces=True, **options)
    print(timeline(outcome))
    print("\nfaults:", *(f"  {number}: {fault}" for number, fault in enumerate(outcome.faults)), sep="\n")
    print("\nviolations:", *(f"  {each}" for each in outcome.violations or ["none"]), sep="\n")
    return bool(outcome.violations)


if __name__ == "__main__":
    raise SystemExit(main())
