"""All rules that are taken out, one at a time."""

from __future__ import annotations

from tests.simulation.claim_mutants import CLAIM_MUTANTS
from tests.simulation.lock_mutants import LOCK_MUTANTS

__all__ = ["MUTANTS"]

MUTANTS = [*LOCK_MUTANTS, *CLAIM_MUTANTS]
