"""What is kept of an exception, and what comes back of it: data, whatever stands on the node."""

from __future__ import annotations

import json
import pickle

import pytest
from dramatiq.results.result import wrap_exception
from hypothesis import given
from hypothesis import strategies as st

from dramatiq_idem import FailureReplayedError, MessageRefusedError, TakeoversExhaustedError
from dramatiq_idem.failures import encode_failure, failure_of, is_failure


class Mute(Exception):  # noqa: N818 - a name as users have it
    """Has no text."""

    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [ValueError("no money left"), KeyError("k"), ValueError(), OSError(2, "gone"), TimeoutError("ü\n \x00\udcff")],
    ids=repr,
)
def test_failure_comes_back_as_results_store_it(error):
    """Same type name, same text."""
    found = failure_of(encode_failure(error, 4096))
    assert wrap_exception(found) == wrap_exception(error)
    assert isinstance(found, FailureReplayedError)
    assert not isinstance(found, type(error))


@given(st.text(), st.integers(0, 300))
def test_failure_is_one_ascii_text_of_bounded_size(text, most_bytes):
    """The record's tail may hold it; what does not fit is cut, and that is shown."""
    encoded = encode_failure(ValueError(text), most_bytes)
    assert encoded.isascii()
    assert "\n" not in encoded
    assert len(encoded) <= max(most_bytes, len('["ValueError",""]'))
    name, kept = json.loads(encoded)
    assert name == "ValueError"
    assert kept == text or (text.startswith(kept.removesuffix("…")) and kept[-1:] in ("…", ""))


def test_text_that_just_fits_is_kept_whole():
    """And one character more is cut."""
    assert json.loads(encode_failure(ValueError("x" * 83), 100)) == ["ValueError", "x" * 83]
    kept = json.loads(encode_failure(ValueError("x" * 84), 100))[1]
    assert kept.endswith("x…")
    assert len(kept) > 60


def test_exception_without_a_text_is_kept_by_name():
    """The claim has to be given up whatever its `__str__` does."""
    assert encode_failure(Mute(), 4096) == '["Mute",""]'


@pytest.mark.parametrize(
    "reason", ["6 runs ended with their lease (max_takeovers is 5)", "orphaned: an earlier run", "[1", "[" * 100_000]
)
def test_reason_that_is_no_failure_is_the_refusal(reason):
    """Takeovers that are used up are given again as what they are."""
    found = failure_of(reason)
    assert type(found) is TakeoversExhaustedError
    assert str(found) == reason
    assert not is_failure(reason)


@pytest.mark.parametrize(
    "reason",
    [
        json.dumps(["__import__('os').abort()", "text"]),
        json.dumps(["a.b", "text"]),
        json.dumps(["x\x00", "text"]),
        json.dumps(["", "text"]),
        json.dumps(["x" * 101, "text"]),
        json.dumps(["\udcff", "text"]),
    ],
)
def test_name_that_is_none_is_an_exception(reason):
    """Nothing that is loaded from a node is looked up or executed."""
    found = failure_of(reason)
    assert wrap_exception(found)["exn"] == {"type": "Exception", "msg": "text"}


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize(
    "reason",
    [pickle.dumps(Bomb(), 0).decode("latin-1"), '["SystemExit","stop"]', '["KeyboardInterrupt",""]', '[["a"],1]', "{}"],
)
def test_whatever_comes_back_is_a_refusal(reason):
    """Never an interrupt, and never an object that says how it wants to be made."""
    assert isinstance(failure_of(reason), MessageRefusedError)
