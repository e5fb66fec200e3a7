"""The chaos tests' checkers, on histories made by hand: they find what is wrong, and nothing else."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.history import (
    Event,
    Hold,
    holds_of,
    late_writes,
    lost_updates,
    overlaps,
    read,
    refused_holders,
    slow_calls,
    slowest_calls,
    thin_leases,
    unordered_fences,
)


def hold(start: float, end: float, fence: int | None = None, resource: str = "r", invoked: float | None = None) -> Hold:
    """Return a lease."""
    token = f"{resource} {start} {end} {fence}"
    return Hold(resource, "c", token, fence, start if invoked is None else invoked, start, end)


def acquired(t: float, token: str, until: float, **values: Any) -> Event:
    """Return the event of a grant."""
    event = {"t": t, "client": "c", "op": "acquired", "resource": "r", "token": token, "fence": 1, "invoked": t - 0.1}
    return event | {"until": until} | values


def noted(t: float, op: str, **values: Any) -> Event:
    """Return another event."""
    return {"t": t, "client": "c", "op": op} | values


# -- leases


def test_lease_ends_when_it_is_given_back() -> None:
    (found,) = holds_of([acquired(1.0, "x", 5.0), noted(2.0, "releasing", token="x")])
    assert (found.start, found.end) == (1.0, 2.0)


def test_lease_of_a_killed_client_ends_with_its_validity() -> None:
    (found,) = holds_of([acquired(1.0, "x", 5.0)])
    assert found.end == 5.0


def test_late_release_does_not_lengthen_a_lease() -> None:
    (found,) = holds_of([acquired(1.0, "x", 5.0), noted(9.0, "releasing", token="x")])
    assert found.end == 5.0


def test_extension_lengthens_a_lease() -> None:
    (found,) = holds_of([acquired(1.0, "x", 5.0), noted(4.0, "extended", token="x", until=8.0)])
    assert found.end == 8.0


# -- S1

GOOD = {
    "none": [],
    "one after another": [hold(1, 2), hold(3, 4)],
    "one ends as the next begins": [hold(1, 2), hold(2, 3)],
    "two resources": [hold(1, 9), hold(2, 3, resource="other")],
    "known only when it was over": [hold(1, 9), hold(2, 2), hold(3, 1)],
}
BAD = {
    "begins before the other ends": [hold(1, 3), hold(2, 4)],
    "within the other": [hold(1, 9), hold(2, 3)],
    "long ago, with others in between": [hold(1, 9), hold(2, 2), hold(3, 4, resource="other"), hold(8, 10)],
    "in no order": [hold(5, 7), hold(1, 6)],
}


@pytest.mark.parametrize("holds", GOOD.values(), ids=GOOD)
def test_leases_that_exclude_each_other(holds: list[Hold]) -> None:
    assert overlaps(holds) == []


@pytest.mark.parametrize("holds", BAD.values(), ids=BAD)
def test_leases_that_overlap(holds: list[Hold]) -> None:
    assert len(overlaps(holds)) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from("ab")), max_size=12))
def test_overlaps_are_found_as_by_trying_all_pairs(rows: list[tuple[int, int, str]]) -> None:
    holds = [hold(start, start + length, fence=n, resource=name) for n, (start, length, name) in enumerate(rows)]
    alive = [each for each in holds if each.end > each.start]
    naive = any(
        one is not other and one.resource == other.resource and one.start < other.end and other.start < one.end
        for one in alive
        for other in alive
    )
    assert bool(overlaps(holds)) is naive


# -- F1, F2

ORDERED = {
    "growing": [hold(1, 2, 5), hold(3, 4, 6)],
    "asked for before the other was had": [hold(1, 2, 7), hold(3, 4, 6, invoked=0.5)],
    "not vouched for": [hold(1, 2, 5), hold(3, 4, None)],
    "another resource's": [hold(1, 2, 5), hold(3, 4, 2, resource="other")],
}
UNORDERED = {
    "smaller": [hold(1, 2, 5), hold(3, 4, 4)],
    "repeated": [hold(1, 2, 5), hold(3, 4, 5)],
    "repeated at once": [hold(1, 2, 5), hold(1.5, 4, 5, invoked=0.5)],
    "smaller than one long ago": [hold(1, 2, 9), hold(3, 4, 10), hold(5, 6, 8)],
}


@pytest.mark.parametrize("holds", ORDERED.values(), ids=ORDERED)
def test_fences_in_order(holds: list[Hold]) -> None:
    assert unordered_fences(holds) == []


@pytest.mark.parametrize("holds", UNORDERED.values(), ids=UNORDERED)
def test_fences_out_of_order(holds: list[Hold]) -> None:
    assert len(unordered_fences(holds)) == 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4), st.integers(0, 30)), max_size=10))
def test_fences_are_judged_as_by_trying_all_pairs(rows: list[tuple[int, int, int]]) -> None:
    holds = [hold(start, start + 1, fence, invoked=start - early) for start, early, fence in rows]
    naive = any(
        one is not other and (one.fence == other.fence or (one.start <= other.invoked and one.fence >= other.fence))
        for one in holds
        for other in holds
        if one.fence is not None and other.fence is not None
    )
    assert bool(unordered_fences(holds)) is naive


def test_counting_up_is_in_order() -> None:
    holds = [hold(number, number + 0.5, number) for number in range(100)]
    assert unordered_fences(holds) == []
    assert all(one.end <= other.start for one, other in pairwise(holds))


# -- updates


def writes(*values: int, resource: str = "r", token: str = "x") -> list[Event]:  # noqa: S107
    """Return writes under one lease, from 1.1 on."""
    return [
        noted(1.1 + number / 100, "wrote", resource=resource, token=token, value=value)
        for number, value in enumerate(values)
    ]


def test_update_that_was_lost_shows_as_a_value_written_twice() -> None:
    grant = acquired(1.0, "x", 5.0)
    assert lost_updates([grant, *writes(1, 2, 2, 3)]) == [("r", 2)]
    assert lost_updates([grant, *writes(1, 2, 3)]) == []


def test_counters_of_two_resources_are_two() -> None:
    events = [acquired(1.0, "x", 5.0), acquired(1.0, "y", 5.0, resource="other")]
    assert lost_updates([*events, *writes(1), *writes(1, resource="other", token="y")]) == []


def test_write_after_the_end_of_the_lease_is_no_fault_of_the_lock() -> None:
    """Nor is what follows, since it may have set the counter back; what was before counts."""
    late = noted(5.1, "wrote", resource="r", token="x", value=2)
    later = [acquired(5.0, "y", 9.0), noted(5.2, "wrote", resource="r", token="y", value=2)]
    events = [acquired(1.0, "x", 5.0), *writes(1, 2), *later, late]
    assert late_writes(events) == [late]
    assert lost_updates(sorted(events, key=lambda event: event["t"])) == []
    assert lost_updates([acquired(1.0, "x", 5.0), *writes(1, 2, 2), late]) == [("r", 2)]


# -- F3


@pytest.mark.parametrize(
    ("t", "accepted", "found"), [(2.0, False, 1), (2.0, True, 0), (5.5, False, 0)], ids=["held", "taken", "late"]
)
def test_holder_is_never_refused_by_a_fenced_store(t: float, accepted: bool, found: int) -> None:  # noqa: FBT001
    events = [acquired(1.0, "x", 5.0), noted(t, "fenced", resource="r", token="x", fence=1, accepted=accepted)]
    assert len(refused_holders(events)) == found


# -- S4


def looked(t: float, mine: int, away: int = 0) -> Event:
    return noted(t, "looked", token="x", began=t - 0.01, mine=mine, away=away)


RESTART = {"kind": "restart, none", "node": 2, "until": 2.2}


@pytest.mark.parametrize(
    ("events", "thin"),
    [
        ([looked(2.0, 2)], 0),
        ([looked(2.0, 1)], 1),
        ([looked(2.0, 1, away=1)], 0),
        ([looked(6.0, 0)], 0),
        ([noted(1.9, "releasing", token="x"), looked(2.0, 0)], 0),
        ([noted(2.0, "fault", **RESTART), looked(2.5, 1)], 0),
        ([noted(2.0, "fault", **RESTART), looked(2.5, 0)], 1),
        ([noted(0.2, "fault", **RESTART | {"until": 0.5}), looked(2.5, 1)], 1),
    ],
    ids=["majority", "taken away", "may be there", "over", "given back", "forgot", "forgot one", "forgot before"],
)
def test_trusted_lease_is_on_a_majority(events: list[Event], thin: int) -> None:
    assert len(thin_leases([acquired(1.0, "x", 5.0), *events], 3)) == thin


def test_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text(
        json.dumps({"t": 2, "op": "lost"}) + "\n" + json.dumps({"t": 1, "op": "lost"}) + "\n" + '{"t": 3, "o'
    )
    assert [event["t"] for event in read([path])] == [1, 2]


# -- calls


@pytest.mark.parametrize(
    ("stalls", "found"),
    [
        ([], 1),
        ([(1.0, 1.2)], 1),
        ([(1.2, 1.6)], 0),
        ([(0.2, 1.1), (1.9, 3.0), (1.5, 1.75)], 0),
        ([(0.0, 0.9), (2.1, 5.0)], 1),
    ],
    ids=["none", "too short", "in it", "in it in part", "before and after it"],
)
def test_call_that_took_too_long_is_found_unless_its_process_stood_still(
    stalls: list[tuple[float, float]], found: int
) -> None:
    call = noted(2.0, "called", what="acquire", began=1.0)
    events = [call, *(noted(until, "stalled", began=began) for began, until in stalls)]
    assert slow_calls(events, {"acquire": 0.7}) == [call] * found


def test_another_clients_stall_is_no_excuse() -> None:
    call = noted(2.0, "called", what="release", began=1.0)
    stall = noted(2.0, "stalled", began=1.0) | {"client": "other"}
    assert slow_calls([call, stall], {"release": 0.7}) == [call]


def test_slowest_call_of_each_kind_is_reported() -> None:
    calls = [("acquire", 0.5), ("acquire", 0.2), ("extend", 0.1)]
    events = [noted(1.0, "called", what=what, began=1.0 - lasted) for what, lasted in calls]
    assert slowest_calls(events) == pytest.approx({"acquire": 0.5, "extend": 0.1})
