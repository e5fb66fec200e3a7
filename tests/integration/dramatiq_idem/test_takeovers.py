"""Jobs that kill their worker: how often they are taken over, and what is left to people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from dramatiq.results.errors import ResultFailure

from dramatiq_idem import ForgetError, RedlockStore
from dramatiq_idem.claim import ClaimRequest
from dramatiq_idem.record import Record
from dramatiq_idem.runs import Run
from redlock import LeaseLostError
from tests.tools.worker_rig import WorkerRig

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def rig(tmp_path, shared, broker_url) -> Iterator[Callable[..., WorkerRig]]:
    """Make a rig on shared nodes."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(WorkerRig(tmp_path, shared.urls, broker_url, **options))


@pytest.fixture
def store(shared):
    """The nodes' records, as people see them."""
    store = RedlockStore(shared.urls)
    yield store
    store.close()


def kill_once_more(rig):
    """Let another worker die in the body."""
    Path(rig._settings["killed"]).unlink(missing_ok=True)
    starts = rig.log.starts()
    with rig.worker(KILL="body") as process:
        rig.wait(lambda: process.poll() is not None)
    assert rig.log.starts() == starts + 1


def records(store, message):
    return [Record.parse(vote.reply[0]) for vote in store.look(f"job:{message.message_id}")]


def test_job_that_always_kills_its_worker_ends_in_the_dead_letters(rig, store):
    """MB5: max_takeovers=2 are three runs; the reason names it, the body does not run a fourth time."""
    rig = rig(max_takeovers=2, lease=800)
    message = rig.send(rig.job("a", d=0.2))
    for _ in range(3):
        kill_once_more(rig)
    with rig.worker():
        rig.wait(lambda: rig.dead_letters == 1)
        rig.wait(rig.is_drained)
        with pytest.raises(ResultFailure, match="max_takeovers is 2"):
            rig.result(message)
    assert rig.log.starts() == 3
    assert [line["takeovers"] for line in rig.lines if line["what"] == "start"] == [0, 1, 2]
    (told,) = rig.told("DeadLettered")
    assert "3 runs ended with their lease" in told
    assert {(each.state.value, "max_takeovers" in each.tail) for each in records(store, message)} == {("failed", True)}


def test_orphan_is_left_to_people(rig, store):
    """MB6: one that was killed in its body is not run again by itself; once it is forgotten and sent again, it is."""
    rig = rig(actor={"idempotency_on_orphan": "dead_letter"}, lease=800)
    message = rig.send(rig.job("a", d=0.2))
    kill_once_more(rig)
    with rig.worker():
        rig.wait(lambda: rig.dead_letters == 1)
        rig.wait(rig.is_drained)
        with pytest.raises(ResultFailure, match="orphaned"):
            rig.result(message)
        assert rig.log.starts() == 1
        assert {(each.state.value, each.tail.split(":")[0]) for each in records(store, message)} == {
            ("failed", "orphaned")
        }
        assert store.forget(f"job:{message.message_id}", 60_000) == 1
        rig.send(message)
        rig.wait(lambda: rig.told("Completed"))
        assert rig.result(message) == 42
    assert rig.log.starts() == 2
    assert {(each.state.value, each.generation) for each in records(store, message)} == {("done", 1)}


def test_running_job_is_not_forgotten_by_accident(rig, store):
    """Only with force; then its completion does not count, and that is told."""
    rig = rig()
    message = rig.send(rig.job("a", d=1.5))
    with rig.worker():
        rig.wait(lambda: rig.log.starts() == 1)
        with pytest.raises(ForgetError, match="running"):
            store.forget(f"job:{message.message_id}", 60_000)
        store.forget(f"job:{message.message_id}", 60_000, force=True)
        rig.wait(lambda: rig.told("Forgotten"))
        rig.wait(rig.is_drained)
        assert {each.state.value for each in records(store, message)} == {"forgotten"}
        rig.send(message)
        rig.wait(lambda: rig.told("Completed"))
    assert rig.log.starts() == 2


def test_fencing_tokens_grow_across_takeovers(store):
    """Each run that overtakes another has a larger one than any before, whichever nodes granted it."""
    request = ClaimRequest("job:K", "", "", 200, 60_000)
    tokens = []
    for takeovers in range(5):
        claim = store.claim(request)
        assert claim.record.takeovers == takeovers
        tokens.append(Run("K", claim, store).fencing_token)
        time.sleep(0.22)
    assert tokens == sorted(set(tokens))
    with pytest.raises(LeaseLostError):
        claim.term.check()


def test_fencing_token_of_an_overtaken_run_is_not_the_new_ones(store):
    """Asked for the first time when another runs already: refused, or smaller than that one's."""
    request = ClaimRequest("job:K", "", "", 200, 60_000)
    old = store.claim(request)
    time.sleep(0.22)
    new = store.claim(request)
    token = Run("K", new, store).fencing_token
    with suppress(LeaseLostError):
        assert Run("K", old, store).fencing_token < token
