"""Contention, outage, loss and bad settings are four different answers."""

from __future__ import annotations

import itertools
import pickle

import pytest

from redlock import LeaseLostError, LockHeldError, QuorumUnreachableError, RedlockError, SettingsError
from tests.tools.plans import granted, named, refused, unknown

ANSWERS = (LockHeldError, QuorumUnreachableError, LeaseLostError, SettingsError)


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(ANSWERS, 2)))
def test_answers_are_told_apart_by_class(one: type[Exception], other: type[Exception]) -> None:
    """L50: never acquired and lost meanwhile are different classes, neither is the other's base."""
    assert not issubclass(one, other)


@pytest.mark.parametrize("error", ANSWERS)
def test_all_answers_have_one_base(error: type[Exception]) -> None:
    assert issubclass(error, RedlockError)


def test_outage_names_the_nodes_and_what_went_wrong() -> None:
    """L03: the error carries one cause per failed node, by address."""
    votes = named([granted(), unknown("Connection refused"), unknown("no reply in time")])
    error = QuorumUnreachableError("report", votes)
    assert error.resource == "report"
    assert error.votes == tuple(votes)
    assert dict(error.causes) == {"n2": "Connection refused", "n3": "no reply in time"}
    assert "n2: unknown, Connection refused" in str(error)
    assert "'report'" in str(error)


def test_contention_tells_when_to_come_back() -> None:
    votes = named([refused(), refused(), granted()])
    error = LockHeldError("report", votes, 1.5)
    assert (error.resource, error.votes, error.retry_after) == ("report", tuple(votes), 1.5)
    assert "'report'" in str(error)
    assert "n1: refused" in str(error)


def test_loss_says_why() -> None:
    error = LeaseLostError("report", "it was not extended in time")
    assert (error.resource, error.cause) == ("report", "it was not extended in time")
    assert "it was not extended in time" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        LockHeldError("r", named([refused()]), 1.0),
        QuorumUnreachableError("r", named([unknown()])),
        LeaseLostError("r", "why"),
        SettingsError("what"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error: RedlockError) -> None:
    """Process pools and result backends pickle what was raised."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_bad_settings_are_value_errors() -> None:
    assert issubclass(SettingsError, ValueError)
