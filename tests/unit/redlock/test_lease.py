"""The life of a lease as its holder may trust it: no IO, and lost is final."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlock import LeaseLostError, Term
from tests.tools.plans import ManualClock

TTL, VALID_UNTIL = 9.0, 8.9


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def term(clock: ManualClock) -> Term:
    """A term of nine seconds that began at zero."""
    return Term("r", TTL, 0.0, VALID_UNTIL, clock)


def test_validity_ends_by_itself(clock: ManualClock, term: Term) -> None:
    """L32: no IO is needed to see that the time is over."""
    clock.now = 8.8
    assert (term.remaining(), term.is_lost) == (pytest.approx(0.1), False)
    term.check()
    clock.now = VALID_UNTIL
    assert (term.remaining(), term.is_lost, term.cause) == (0.0, True, "it was not extended in time")
    with pytest.raises(LeaseLostError, match="'r' is lost: it was not extended in time"):
        term.check()


def test_lost_is_final(clock: ManualClock, term: Term) -> None:
    """Nothing revives a lost lease, a late extension and a clock that goes back included."""
    clock.now = 9.0
    assert term.is_lost
    term.extended(9.0, 17.9)
    clock.now = 1.0
    assert (term.is_lost, term.remaining()) == (True, 0.0)


def test_first_cause_stays(clock: ManualClock, term: Term) -> None:
    term.lose("somebody else holds it")
    term.lose("another reason")
    clock.now = 10.0
    assert term.cause == "somebody else holds it"
    assert term.remaining() == 0.0


def test_extension_moves_validity_to_the_new_round(clock: ManualClock, term: Term) -> None:
    """L40: after an extension what counts is the new round's time, not what was left of the old."""
    clock.now = 8.0
    term.extended(8.0, 8.0 + VALID_UNTIL)
    assert term.remaining() == pytest.approx(VALID_UNTIL)
    assert term.renew_at == pytest.approx(8.0 + TTL / 3)


def test_extension_never_shortens(clock: ManualClock, term: Term) -> None:
    term.extended(0.0, 5.0)
    assert term.valid_until == VALID_UNTIL


def test_renewal_is_due_at_a_third_of_the_ttl(term: Term) -> None:
    assert term.renew_at == pytest.approx(TTL / 3)


@given(now=st.floats(0.0, VALID_UNTIL))
def test_failed_extension_is_tried_again_within_the_validity(now: float) -> None:
    """At least one more try before the end, unless that is less than 10 ms away; never at once."""
    term = Term("r", TTL, 0.0, VALID_UNTIL, ManualClock(now))
    term.postponed()
    assert term.renew_at >= now + 0.01
    assert term.renew_at < VALID_UNTIL or VALID_UNTIL - now < 0.0101


def test_cap_ends_renewal_not_validity(clock: ManualClock) -> None:
    term = Term("r", TTL, 0.0, VALID_UNTIL, clock, max_hold=4.0)
    clock.now = 3.9
    assert not term.is_capped
    clock.now = 4.0
    assert (term.is_capped, term.is_lost) == (True, False)


def test_without_a_cap_renewal_goes_on(clock: ManualClock, term: Term) -> None:
    clock.now = 1e9
    assert not term.is_capped
