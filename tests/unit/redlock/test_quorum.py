"""Quorum, verdict and validity: values in, values out."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlock import Count, Verdict, Vote, VoteKind, is_decided, quorum_size, tally, validity
from tests.tools.plans import spelled

KINDS = (VoteKind.GRANTED, VoteKind.REFUSED, VoteKind.UNKNOWN)
SIZES = range(1, 10)


@pytest.mark.parametrize(("nodes", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (8, 5), (9, 5)])
def test_quorum_is_a_majority_of_the_configured_nodes(nodes: int, quorum: int) -> None:
    """L06: the table, N=0 is refused at construction."""
    assert quorum_size(nodes) == quorum


@pytest.mark.parametrize("nodes", SIZES)
def test_two_quorums_always_meet(nodes: int) -> None:
    assert 2 * quorum_size(nodes) > nodes


def test_validity_takes_elapsed_time_and_drift_off() -> None:
    """L27: 1000 - 100 - 12 ms is 888; added instead of subtracted it would be 912."""
    assert validity(1.0, 0.1, 0.01) == pytest.approx(0.888)


def test_validity_shrinks_by_the_servers_rounding() -> None:
    """L28: the 2 ms are taken off, at no elapsed time at all."""
    assert validity(10.0, 0.0, 0.01) == pytest.approx(9.898)


@pytest.mark.parametrize(("elapsed", "left"), [(0.097, 0.0), (0.096, 0.001)])
def test_validity_at_its_end(elapsed: float, left: float) -> None:
    """L30: a lease of 100 ms is worth nothing after 97 ms."""
    assert validity(0.1, elapsed, 0.01) == pytest.approx(left, abs=1e-12)


durations = st.floats(0.003, 86_400.0)
shares = st.floats(0.0, 0.499)


@given(ttl=durations, elapsed=st.floats(0.0, 86_400.0), drift=shares)
def test_validity_agrees_with_exact_rationals(ttl: float, elapsed: float, drift: float) -> None:
    exact = Fraction(ttl) * (1 - Fraction(drift)) - Fraction(elapsed) - Fraction(2, 1000)
    assert abs(Fraction(validity(ttl, elapsed, drift)) - exact) < Fraction(1, 10**9)


@given(ttl=durations, elapsed=st.tuples(st.floats(0.0, 1e5), st.floats(0.0, 1e5)), drift=shares)
def test_validity_never_grows_with_elapsed_time(ttl: float, elapsed: tuple[float, float], drift: float) -> None:
    sooner, later = sorted(elapsed)
    assert validity(ttl, later, drift) <= validity(ttl, sooner, drift) < ttl


def _votes(kinds: tuple[VoteKind | None, ...]) -> list[Vote | None]:
    return [None if kind is None else Vote(f"n{index}", kind) for index, kind in enumerate(kinds)]


def _multisets(size: int, *, missing: bool) -> list[tuple[VoteKind | None, ...]]:
    """Return all combinations of kinds; their order says nothing, as another test shows."""
    return list(itertools.combinations_with_replacement((*KINDS, None) if missing else KINDS, size))


@pytest.mark.parametrize("nodes", SIZES)
def test_verdict_of_every_combination(nodes: int) -> None:
    """A quorum of grants is a grant; held is only what no unknown node could have granted."""
    for kinds in _multisets(nodes, missing=False):
        yes, no = kinds.count(VoteKind.GRANTED), kinds.count(VoteKind.REFUSED)
        expected = Verdict.UNREACHABLE
        if 2 * yes > nodes:
            expected = Verdict.GRANTED
        elif 2 * (nodes - no) <= nodes:  # the others are no majority
            expected = Verdict.HELD
        assert tally(_votes(kinds)) is expected, kinds


@pytest.mark.parametrize("nodes", SIZES)
def test_decided_rounds_stay_as_they_are(nodes: int) -> None:
    """Where a round is decided, whatever is still missing changes nothing."""
    for kinds in _multisets(nodes, missing=True):
        if is_decided(Count.of(_votes(kinds))):
            present = tuple(kind for kind in kinds if kind is not None)
            missing = nodes - len(present)
            endings = itertools.combinations_with_replacement(KINDS, missing)
            assert len({tally(_votes(present + ending)) for ending in endings}) == 1, kinds


@pytest.mark.parametrize("nodes", SIZES)
def test_nothing_is_decided_while_a_majority_is_missing(nodes: int) -> None:
    """So nobody need ask before; two refusals of four nodes decide, which is before a majority has answered."""
    for kinds in _multisets(nodes, missing=True):
        count = Count.of(_votes(kinds))
        assert not is_decided(count) or count.missing < count.quorum, kinds


@pytest.mark.parametrize("nodes", SIZES)
def test_round_with_all_votes_is_decided(nodes: int) -> None:
    """Nobody waits for a time-out when every node has answered, with a quorum or without."""
    undecided = [kinds for kinds in _multisets(nodes, missing=False) if not is_decided(Count.of(_votes(kinds)))]
    assert not undecided


@pytest.mark.parametrize("nodes", SIZES)
def test_quorum_of_grants_or_refusals_is_decided_at_once(nodes: int) -> None:
    quorum = quorum_size(nodes)
    for kind in (VoteKind.GRANTED, VoteKind.REFUSED):
        assert is_decided(Count.of(_votes((kind,) * quorum + (None,) * (nodes - quorum))))


@pytest.mark.parametrize("nodes", SIZES)
def test_votes_counted_one_by_one_are_those_counted_at_once(nodes: int) -> None:
    for kinds in _multisets(nodes, missing=True):
        count, votes = Count(nodes, missing=nodes), _votes(kinds)
        for vote in filter(None, votes):
            count.add(vote)
        assert count == Count.of(votes)


@pytest.mark.parametrize("letters", ["GRU", "GGRRU"])
def test_order_of_the_nodes_does_not_matter(letters: str) -> None:
    assert len({tally(spelled("".join(order))) for order in itertools.permutations(letters)}) == 1
