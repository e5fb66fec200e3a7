"""The fencing token design holds in every interleaving of a small system, and each condition it needs is needed."""

from __future__ import annotations

import pytest

from tests.simulation.fence_model import Design, Result, check

# Floors on the number of states: a model that lost its moves would exhaust at once and prove nothing.
SAFE = [
    pytest.param(Design(lost_replies=True, ticks=1), 400_000, id="replies lost while seconds pass"),
    pytest.param(Design(clients=3), 400_000, id="three clients within one second", marks=pytest.mark.slow),
    pytest.param(Design(amnesias=1, guard_wait=1, ticks=1), 90_000, id="amnesia, guard waits 1 s, clocks equal"),
    pytest.param(
        Design(amnesias=1, guard_wait=2, offsets=(1, 0, 0), ticks=2),
        400_000,
        id="amnesia, guard waits 2 s, clocks 1 s apart",
        marks=pytest.mark.slow,
    ),
    pytest.param(Design(counter_life=1, ticks=1), 150_000, id="counters expire after 1 s, clocks equal"),
    pytest.param(
        Design(counter_life=2, offsets=(1, 0, 0), ticks=2),
        600_000,
        id="counters expire after 2 s, clocks 1 s apart",
        marks=pytest.mark.slow,
    ),
]

UNSAFE = [
    pytest.param(Design(amnesias=1, guard_wait=0, ticks=1), "R", id="amnesia within the same second"),
    pytest.param(
        Design(amnesias=1, guard_wait=1, offsets=(1, 0, 0), ticks=1), "R", id="guard waits 1 s, clocks 1 s apart"
    ),
    pytest.param(
        Design(amnesias=1, guard_wait=2, offsets=(1, 0, 0), ticks=3, ticks_per_second=2),
        "U",
        id="guard waits 1 s, clocks half a second apart",
    ),
    pytest.param(
        Design(counter_life=1, offsets=(1, 0, 0), ticks=1), "R", id="counters expire after 1 s, clocks 1 s apart"
    ),
    pytest.param(Design(clients=3, write_back=False), "U", id="plain maximum over one INCR"),
    pytest.param(Design(clients=3, owner_check=False), "U", id="counters raised without owning the lock"),
    pytest.param(Design(counter_outlives_lock=False), "R", id="counter deleted with its lock"),
    pytest.param(Design(seeded=False, amnesias=1, guard_wait=1, ticks=1), "R", id="counters restart from zero"),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("design", "fewest_states"), SAFE)
def test_tokens_are_unique_and_ordered_in_every_reachable_state(design: Design, fewest_states: int) -> None:
    """No interleaving breaks a promise, and the search came to its end over a system worth searching."""
    result = check(design)
    assert result.outcome == "exhausted", str(result)
    assert result.states >= fewest_states


@pytest.mark.parametrize(("design", "promise"), UNSAFE)
def test_leaving_a_condition_out_is_found_with_its_path(design: Design, promise: str) -> None:
    """The search finds the violation and prints the steps that lead to it."""
    result = check(design)
    print(result)
    assert result.outcome == "violation"
    assert result.violation.startswith(f"{promise}: ")
    assert_path_ends_in_the_violation(result)


def assert_path_ends_in_the_violation(result: Result) -> None:
    """Check that the path is a whole story: somebody starts, two acquisitions finish, and it can be read."""
    story = [str(action) for action in result.path]
    assert "starts" in story[0]
    assert sum("finishes with" in step or "raises and counts" in step for step in story) >= 2
    assert str(result).count("\n") == len(story)


def test_the_search_gives_up_at_its_limit_and_says_so() -> None:
    """A search that was cut short never reads as exhausted."""
    result = check(Design(), limit=10)
    assert (result.outcome, result.states) == ("limit", 10)
