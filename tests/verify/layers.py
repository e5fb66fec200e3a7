"""The layers of the verification: which tests each has, and which faults it must inject how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LAYERS", "ROOT", "Layer"]

ROOT = Path(__file__).resolve().parents[2]
PROXY_MODES = ("refuse", "reset", "hang", "drop_requests", "drop_replies", "delay", "inject", "garbage", "cut")
FAULTS = {
    **{f"restart, {mode}": 50 for mode in ("none", "everysec", "always", "truncated")},
    "restart within a lease": 70,
    "pause": 200,
    **{f"proxy {mode}": 30 for mode in PROXY_MODES},
    "clock rate": 20,
    "clock step back": 30,
    "clock step": 24,
    "clock rate of 10 %": 24,
    "client stop": 50,
    "client stop before a write": 20,
    "client kill": 50,
}
"""What the chaos layer has to inject in a full run, and how often."""


@dataclass(frozen=True)
class Layer:
    """One layer of the verification.

    Args:
        name: Its name.
        files: Returns its test files or folders; none means that it is missing.
        options: More arguments for pytest.
        env: More environment.
        faults: Kinds of faults that must have been injected, and how often in a full run.
        is_alone: Whether nothing else may run meanwhile, since time matters to it.
    """

    name: str
    files: Callable[[], list[Path]]
    options: Sequence[str] = ()
    env: tuple[tuple[str, str], ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    is_alone: bool = False


def _tests(folder: str, pattern: str = "test_*.py") -> list[Path]:
    return sorted((ROOT / "tests" / folder).rglob(pattern))


def _simulation(name: str, pattern: str, timeout: int) -> Layer:
    """Return a layer that plays all the schedules that are asked for."""
    return Layer(name, lambda: _tests("simulation", pattern), [f"--timeout={timeout}"], (("SIMULATION", "full"),))


LAYERS = (
    Layer("models", lambda: _tests("simulation", "test_*_model.py"), ["--timeout=900"]),
    _simulation("locks", "test_lock_simulation.py", 3000),
    _simulation("claims", "test_claim_simulation.py", 3000),
    _simulation("mutants", "test_mutants.py", 900),
    Layer("virtual nodes", lambda: _tests("simulation", "test_sim_nodes.py"), ["--timeout=600"]),
    Layer("properties", lambda: _tests("unit"), ["-m", "hypothesis", "--timeout=600"], (("PROPERTIES", "full"),)),
    Layer("chaos", lambda: _tests("chaos"), ["-m", "chaos"], faults=FAULTS, is_alone=True),
)
