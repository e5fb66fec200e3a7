"""What every store promises, run for the one in memory and for the one on real nodes alike."""

from __future__ import annotations

import json
import threading
import time

import pytest

from dramatiq_idem import ForgetError, MemoryStore, RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.judgement import Busy, Completed, Failed
from dramatiq_idem.record import State
from redlock import Redlock
from tests.tools.workbench import wait_until

LEASE, RETENTION = 250, 30_000
REQUEST = ClaimRequest("pay:K", "message-1", "print", LEASE, RETENTION)
LONG = REQUEST._replace(lease_ms=20_000)


@pytest.fixture(params=["memory", "redlock"])
def store(request):
    """An empty store that serves at once."""
    if request.param == "memory":
        yield MemoryStore()
        return
    nodes = request.getfixturevalue("trio")
    redlock = Redlock(nodes.urls, namespace="idem")
    redlock.bootstrap()
    redlock.close()
    store = RedlockStore(nodes.urls)
    yield store
    store.close()


def claimed(store, request=LONG):
    """Return a claim that must be granted."""
    outcome = store.claim(request)
    assert isinstance(outcome, Claim), outcome
    return outcome


def lapsed(store, request=REQUEST):
    """Return a claim whose lease has ended."""
    claim = claimed(store, request)
    time.sleep(request.lease_ms / 1000 + 0.02)
    return claim


# -- claim


def test_new_key_is_claimed(store):
    """Running, of generation 0, with nobody before; valid for about its lease."""
    claim = claimed(store)
    record = claim.record
    assert (record.state, record.generation, record.takeovers) == (State.RUNNING, 0, 0)
    assert (record.fingerprint, record.message_id) == ("print", "message-1")
    assert 19.0 < claim.term.remaining() <= 20.0
    assert not claim.term.is_lost
    assert not claim.is_contested


def test_claimed_key_is_busy(store):
    """With the holder and about what is left of his lease."""
    holder = claimed(store)
    outcome = store.claim(LONG._replace(message_id="message-2", fingerprint="other"))
    assert isinstance(outcome, Busy)
    assert 19.0 < outcome.left <= 20.0
    assert (outcome.record.token, outcome.record.message_id) == (holder.record.token, "message-1")
    assert outcome.record.fingerprint == "print"


def test_keys_do_not_know_each_other(store):
    """Nor do names that begin alike."""
    for name in ("pay:K", "pay:K2", "pay:", "ship:K", "pay:k", "pay:K:*"):
        assert claimed(store, LONG._replace(name=name)).record.takeovers == 0


def test_one_of_many_threads_gets_the_claim(store):
    """All others find it busy."""
    outcomes = []
    gate = threading.Barrier(8)

    def ask():
        gate.wait()
        outcomes.append(type(store.claim(LONG)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Where nobody got a majority of real nodes, all have taken their votes back.
    assert outcomes.count(Claim) <= 1
    if isinstance(store, MemoryStore):
        assert outcomes.count(Claim) == 1
        assert outcomes.count(Busy) == 7


def test_tokens_differ(store):
    """Each claim has its own, also for the same key."""
    tokens = set()
    for _ in range(5):
        claim = claimed(store)
        tokens.add(claim.record.token)
        store.abandon(claim, State.FREE, "")
    assert len(tokens) == 5


# -- takeover


def test_claim_whose_lease_has_ended_is_taken_over(store):
    """And counted, each time."""
    first = lapsed(store)
    assert first.term.is_lost
    for takeovers in (1, 2):
        claim = lapsed(store)
        assert claim.record.takeovers == takeovers
        assert claim.record.token != first.record.token


def test_run_that_took_another_over_is_contested(store):
    """The earlier one may still be under way, and complete: the later one has to ask before it stores a result."""
    lapsed(store)
    second = claimed(store)
    assert second.is_contested


def test_takeover_is_remembered_by_the_next_claim(store):
    """Giving the second run up does not end the first one."""
    lapsed(store)
    second = claimed(store)
    store.abandon(second, State.FREE, "")
    third = claimed(store)
    assert third.record.takeovers == 0
    assert third.is_contested


def test_kept_claim_outlives_its_lease(store):
    """It is renewed until it is ended; nobody is told of a loss."""
    lost = []
    claim = claimed(store, REQUEST._replace(lease_ms=300))
    keeper = store.keep(claim, lost.append)
    time.sleep(1.0)
    assert isinstance(store.claim(REQUEST), Busy)
    assert not claim.term.is_lost
    keeper.end()
    assert lost == []
    assert store.complete(claim, "1").record.token == claim.record.token


# -- complete


def test_completion_stands(store):
    """Whoever asks afterwards gets it with its result, once a majority has it."""
    claim = claimed(store)
    recorded = store.complete(claim, '{"a": "x y"}')
    assert not recorded.is_forgotten
    assert recorded.record == claim.record.completed('{"a": "x y"}')
    outcome = store.claim(LONG._replace(message_id="message-2"))
    assert outcome == Completed(recorded.record, is_agreed=True)
    assert store.completion("pay:K") == recorded.record


@pytest.mark.parametrize("result", [None, 0, "", [], False, {}, "a b  c ", "ü\n\x00%", 1.5, {"a": [1, None]}], ids=repr)
def test_results_come_back_as_they_were(store, result):
    """Falsy ones too, and with whatever characters."""
    store.complete(claimed(store), json.dumps(result))
    outcome = store.claim(LONG)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.record.tail) == result
    assert type(json.loads(outcome.record.tail)) is type(result)


def test_completion_without_a_result(store):
    """One that was too large to be kept."""
    store.complete(claimed(store), "")
    assert store.claim(LONG).record.tail == ""


def test_completion_is_recorded_again_without_harm(store):
    """As after a lost reply."""
    claim = claimed(store)
    once = store.complete(claim, "1")
    assert store.complete(claim, "1") == once


def test_first_completion_is_kept(store):
    """Of two runs of one generation; the second one is told whose it is."""
    first = lapsed(store)
    second = claimed(store)
    assert store.complete(first, "1").record.token == first.record.token
    assert store.complete(second, "2").record == first.record.completed("1")
    assert store.completion("pay:K").tail == "1"


def test_lost_claim_still_completes(store):
    """It is true that it was done, though somebody else holds the key by then."""
    first = lapsed(store)
    claimed(store)
    store.complete(first, "1")
    assert isinstance(store.claim(LONG), Completed)


def test_key_without_completion_has_none(store):
    """Neither unknown, nor running, nor given up."""
    assert store.completion("pay:K") is None
    claim = claimed(store)
    assert store.completion("pay:K") is None
    store.abandon(claim, State.FREE, "")
    assert store.completion("pay:K") is None


def test_run_without_a_claim_completes(store):
    """One that was let through without a quorum; it does not replace what stands."""
    unclaimed = store.unclaimed(LONG)
    assert unclaimed.term.is_lost
    store.complete(unclaimed, "1")
    assert store.claim(LONG).record.tail == "1"
    assert store.complete(store.unclaimed(LONG), "2").record.tail == "1"


# -- abandon


@pytest.mark.parametrize("state", [State.FREE, State.FAILED])
def test_given_up_key_is_free_at_once(store, state):
    """It counts as no takeover."""
    assert store.abandon(claimed(store), state, "the reason")
    again = claimed(store)
    assert again.record.takeovers == 0
    assert not again.is_contested


def test_failure_with_a_reason_is_found_by_who_asks_for_it(store):
    """MG6: and by nobody else; one without a reason is no failure to give again."""
    asking = LONG._replace(replays_failures=True)
    assert store.abandon(claimed(store, asking), State.FAILED, "")
    assert store.abandon(claimed(store, asking), State.FREE, "why")
    assert store.abandon(claimed(store, asking), State.FAILED, "why")
    for _ in range(2):
        outcome = store.claim(asking)
        assert isinstance(outcome, Failed)
        assert (outcome.record.tail, outcome.record.message_id) == ("why", "message-1")
    assert isinstance(store.claim(LONG), Claim)


def test_only_the_owner_gives_up(store):
    """MC2: a stale owner that fails leaves its successor alone."""
    stale = lapsed(store)
    owner = claimed(store)
    assert not store.abandon(stale, State.FREE, "")
    assert isinstance(store.claim(LONG), Busy)
    assert store.abandon(owner, State.FREE, "")
    assert not store.abandon(owner, State.FREE, "")


def test_completion_is_not_given_up(store):
    """Done is done."""
    claim = claimed(store)
    store.complete(claim, "1")
    assert not store.abandon(claim, State.FAILED, "")
    assert isinstance(store.claim(LONG), Completed)


# -- retention


def test_completion_is_remembered_for_its_retention(store):
    """Counted from the completion, not from the claim."""
    request = LONG._replace(lease_ms=200, retention_ms=2_000)
    claim = claimed(store, request)
    time.sleep(1.2)
    store.complete(claim, "1")
    time.sleep(1.0)
    assert isinstance(store.claim(request), Completed)
    wait_until(lambda: store.completion("pay:K") is None)
    assert claimed(store, request).record.takeovers == 0


# -- forget


def test_forgotten_completion_runs_again(store):
    """In a generation of its own."""
    store.complete(claimed(store), "1")
    assert store.forget("pay:K", RETENTION) == 1
    assert store.completion("pay:K") is None
    again = claimed(store)
    assert (again.record.generation, again.record.takeovers) == (1, 0)
    assert store.complete(again, "2").record.tail == "2"
    assert store.completion("pay:K").tail == "2"


def test_forgetting_counts_on(store):
    """Also for a key that nobody has heard of."""
    assert [store.forget("pay:K", RETENTION) for _ in range(3)] == [1, 2, 3]
    assert claimed(store).record.generation == 3


def test_running_key_is_forgotten_only_by_force(store):
    """Its run goes on, and its completion does not count any more."""
    running = claimed(store)
    with pytest.raises(ForgetError, match="pay:K"):
        store.forget("pay:K", RETENTION)
    assert isinstance(store.claim(LONG), Busy)
    assert store.forget("pay:K", RETENTION, force=True) == 1
    assert store.complete(running, "1").is_forgotten
    assert store.completion("pay:K") is None
    assert not store.abandon(running, State.FREE, "")
    assert claimed(store).record.generation == 1


def test_key_whose_lease_has_ended_is_forgotten_without_force(store):
    """Nobody runs it, as far as anybody can tell."""
    lapsed(store)
    assert store.forget("pay:K", RETENTION) == 1
    assert claimed(store).record.takeovers == 0


def test_completion_of_a_forgotten_run_does_not_touch_the_new_one(store):
    """Neither while that runs, nor when it is done."""
    old = claimed(store)
    store.forget("pay:K", RETENTION, force=True)
    new = claimed(store)
    assert store.complete(old, "1").is_forgotten
    assert isinstance(store.claim(LONG), Busy)
    store.complete(new, "2")
    assert store.complete(old, "1").is_forgotten
    assert store.completion("pay:K").tail == "2"


# -- fencing tokens


def test_fencing_token_grows_with_every_run(store):
    """Across giving up, taking over, failing and forgetting."""
    tokens = []

    def run(request=LONG):
        claim = claimed(store, request)
        tokens.append(store.fence(claim))
        return claim

    store.abandon(run(), State.FREE, "")
    store.abandon(run(), State.FAILED, "")
    run(REQUEST)
    time.sleep(LEASE / 1000 + 0.02)
    store.complete(run(), "1")
    store.forget("pay:K", RETENTION)
    run()
    store.forget("pay:K", RETENTION, force=True)
    run()
    assert tokens == sorted(set(tokens))
    assert all(isinstance(token, int) for token in tokens)


def test_fencing_token_grows_across_the_end_of_a_record(store):
    """Whoever checks it remembers the largest one for longer than the store does."""
    request = REQUEST._replace(lease_ms=200, retention_ms=400)
    before = []
    for _ in range(3):
        claim = claimed(store, request)
        before.append(store.fence(claim))
        store.abandon(claim, State.FREE, "")
    time.sleep(1.1)
    assert store.fence(claimed(store, request)) > max(before)


def test_fencing_token_grows_although_an_overtaken_run_completes(store):
    """The second run's token is the larger one; the first one's completion, and forgetting it, must not set it back."""
    first = lapsed(store)
    second = claimed(store)
    token = store.fence(second)
    assert token > store.fence(first) if store.fence(first) else True
    store.complete(first, "1")
    store.forget("pay:K", RETENTION)
    assert store.fence(claimed(store)) > token


def test_fencing_token_grows_although_a_run_without_a_claim_completes(store):
    """One that was let through without a quorum has no counter of its own."""
    claim = claimed(store)
    token = store.fence(claim)
    store.abandon(claim, State.FREE, "")
    store.complete(store.unclaimed(LONG), "1")
    store.forget("pay:K", RETENTION)
    assert store.fence(claimed(store)) > token


def test_run_without_a_claim_completes_a_key_that_was_forgotten_once(store):
    """Its completion belongs to the generation that is in force, or the next delivery runs again."""
    store.complete(claimed(store), "1")
    store.forget("pay:K", RETENTION)
    store.complete(store.unclaimed(LONG), "2")
    assert isinstance(store.claim(LONG), Completed)


@pytest.mark.parametrize("end", ["abandon", "takeover", "complete", "forget"])
def test_fencing_token_of_a_run_that_is_over(store, end):
    """None, or the very same one as before: never one that belongs to somebody else."""
    claim = claimed(store, REQUEST)
    token = store.fence(claim)
    if end == "abandon":
        store.abandon(claim, State.FREE, "")
    elif end == "complete":
        store.complete(claim, "1")
    elif end == "forget":
        store.forget("pay:K", RETENTION, force=True)
    else:
        time.sleep(LEASE / 1000 + 0.02)
        assert store.fence(claimed(store)) > token
    assert store.fence(claim) in (None, token)


# -- the rest


def test_store_says_how_long_a_lease_may_be(store):
    """In milliseconds; checking and closing cost nothing."""
    assert store.max_ttl_ms == 30_000
    assert store.check() is None
