"""What to do with a delivery, by table: each answer of the store under each policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.errors import KeyReusedError, MessageRefusedError, ResultMissingError, TakeoversExhaustedError
from dramatiq_idem.judgement import Busy, Completed, Unavailable
from dramatiq_idem.policies import Policy
from dramatiq_idem.record import Record, State
from dramatiq_idem.rules import MessageRules
from dramatiq_idem.verdict import Defer, Refuse, Replay, RunIt, RunUnprotected, Skip, decide
from redlock import Term

ME, OTHER = "message-2", "message-1"
DONE = Record(State.DONE, 0, 1, "theirs", 0, 0, "print-a", OTHER, "42")
RUNNING = Record(State.RUNNING, 0, 1, "theirs", 0, 99, "print-a", OTHER)
DOWN = Unavailable({"a": "refused", "b": "no reply in time"})
DEFAULTS = Policy()


def done(record=DONE, **changes):
    return Completed(record._replace(**changes), is_agreed=True)


def busy(**changes):
    return Busy(RUNNING._replace(**changes), 2.5)


def granted(takeovers=0):
    request = ClaimRequest("pay:K", ME, "print-a", 3_000, 60_000)
    record = RUNNING._replace(token="ours", takeovers=takeovers, message_id=ME)
    return Claim(request, record, Term("pay:K", 3.0, 0.0, 3.0, lambda: 0.0))


def action(outcome, fingerprint="print-a", *, is_own_id=False, wanted=False, message_id=ME, **policy):
    rules = MessageRules(replace(DEFAULTS, **policy), "K", "pay:K", "" if is_own_id else fingerprint, is_own_id)
    return decide(outcome, rules, message_id, is_result_wanted=wanted)


EVERY_POLICY = [
    {},
    {"on_done": "skip"},
    {"on_done": "replay"},
    {"on_done": "run"},
    {"on_busy": "wait"},
    {"on_busy": "skip"},
    {"on_busy": "fail"},
    {"on_unavailable": "run"},
    {"on_unavailable": "fail"},
    {"on_lost": "interrupt"},
    {"on_orphan": "dead_letter"},
    {"max_takeovers": 0},
]


# -- ours


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=str)
def test_new_key_runs_under_every_policy(policy):
    """Nothing but an earlier run that ended with its lease keeps a granted claim from running."""
    claim = granted()
    assert action(claim, **policy) == RunIt(claim)


@pytest.mark.parametrize(
    ("takeovers", "most", "runs"), [(0, 0, True), (1, 0, False), (1, 1, True), (2, 2, True), (3, 2, False)]
)
def test_takeovers_are_counted(takeovers, most, runs):
    """max_takeovers=2 allows two takeovers, which are three runs; the third one is given up before its dead letter."""
    claim = granted(takeovers)
    found = action(claim, max_takeovers=most)
    if runs:
        assert found == RunIt(claim)
    else:
        assert isinstance(found.error, TakeoversExhaustedError)
        assert found.claim is claim
        assert f"{takeovers} runs" in str(found.error)
        assert "max_takeovers" in str(found.error)


def test_default_allows_five_takeovers():
    """As the README says."""
    assert isinstance(action(granted(5)), RunIt)
    assert isinstance(action(granted(6)), Refuse)


def test_orphan_goes_to_the_dead_letters_by_choice():
    """A run that ended with its lease may have taken effect; people are to decide, even about the first one."""
    claim = granted(1)
    found = action(claim, on_orphan="dead_letter", max_takeovers=9)
    assert isinstance(found.error, TakeoversExhaustedError)
    assert "orphaned" in str(found.error)
    assert found.claim is claim


# -- completed


@pytest.mark.parametrize(
    ("choice", "same", "expected"),
    [
        ("auto", "id", Skip),
        ("auto", "key", Skip),
        ("auto", "other", Replay),
        ("skip", "id", Skip),
        ("skip", "key", Skip),
        ("skip", "other", Skip),
        ("replay", "id", Replay),
        ("replay", "key", Replay),
        ("replay", "other", Replay),
        ("run", "id", RunUnprotected),
        ("run", "key", RunUnprotected),
        ("run", "other", RunUnprotected),
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_completed(choice, same, expected, wanted):
    """The same message by its id as the key, the same message under another key, another message."""
    outcome = done(message_id="", fingerprint="") if same == "id" else done()
    message_id = OTHER if same == "key" else ME
    found = action(outcome, is_own_id=same == "id", message_id=message_id, wanted=wanted, on_done=choice)
    assert isinstance(found, expected)
    if expected is Skip:
        assert found.reason == "completed"
    elif expected is RunUnprotected:
        assert found.reason == "done"
    else:
        assert found.record == outcome.record


@pytest.mark.parametrize("tail", ["null", "0", '""', "[]", "false", "{}"])
def test_falsy_result_is_a_result(tail):
    """None, 0, "", [] and False are what the body returned."""
    assert action(done(tail=tail), wanted=True) == Replay(DONE._replace(tail=tail))


def test_result_that_was_not_kept_is_missed_only_where_it_is_wanted():
    """Too large to be kept: whoever reads it is told, whoever does not is served."""
    found = action(done(tail=""), wanted=True)
    assert isinstance(found.error, ResultMissingError)
    assert found.claim is None
    assert OTHER in str(found.error)
    assert isinstance(action(done(tail=""), wanted=False), Replay)
    assert isinstance(action(done(tail=""), wanted=True, on_done="skip"), Skip)
    assert isinstance(action(done(tail=""), wanted=True, message_id=OTHER), Skip)


# -- used for other arguments


@pytest.mark.parametrize("outcome", [done(), busy()], ids=["done", "busy"])
@pytest.mark.parametrize("policy", EVERY_POLICY, ids=str)
def test_other_arguments_under_one_key_are_refused_under_every_policy(outcome, policy):
    """ME12: never run, replayed, skipped or deferred; nothing is claimed, so nothing is given up."""
    found = action(outcome, "print-b", **policy)
    assert isinstance(found.error, KeyReusedError)
    assert found.claim is None
    assert "K" in str(found.error)


@pytest.mark.parametrize(("ours", "theirs"), [("", "print-a"), ("print-a", ""), ("", ""), ("-", "-")])
def test_arguments_that_one_side_does_not_compare_are_not_compared(ours, theirs):
    """By message id, or with no fingerprint; also across a deployment that changed it."""
    assert isinstance(action(done(fingerprint=theirs), ours), Replay)
    assert isinstance(action(busy(fingerprint=theirs), ours), Defer)


def test_takeover_is_not_compared():
    """Only done and live running records count: a granted claim may have other arguments than the one before."""
    assert isinstance(action(granted(1), "print-b"), RunIt)


# -- busy


@pytest.mark.parametrize("choice", ["requeue", "wait"])
def test_busy_message_goes_back(choice):
    """Waiting in the worker ends the same way once its patience is over."""
    outcome = busy()
    found = action(outcome, on_busy=choice)
    assert found == Defer(outcome, f"run by message {OTHER}")


def test_busy_message_is_skipped_by_choice():
    """It is named whose run stands for it."""
    found = action(busy(), on_busy="skip")
    assert found == Skip(RUNNING, "busy")


def test_busy_message_fails_by_choice():
    """With the holder in the reason."""
    found = action(busy(), on_busy="fail")
    assert type(found.error) is MessageRefusedError
    assert OTHER in str(found.error)
    assert found.claim is None


def test_holder_of_an_own_id_is_the_message_itself():
    """Its record does not repeat the id."""
    assert action(busy(message_id="", fingerprint=""), is_own_id=True).detail == f"run by message {ME}"


# -- no quorum


@pytest.mark.parametrize("wanted", [True, False])
def test_no_quorum(wanted):
    """Back to the queue without a holder; or run; or fail; each node's cause in the reason."""
    found = action(DOWN, wanted=wanted)
    assert found == Defer(None, "a: refused; b: no reply in time")
    assert action(DOWN, wanted=wanted, on_unavailable="run") == RunUnprotected("unavailable")
    refused = action(DOWN, wanted=wanted, on_unavailable="fail")
    assert type(refused.error) is MessageRefusedError
    assert "b: no reply in time" in str(refused.error)
    assert refused.claim is None
