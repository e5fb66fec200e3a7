"""Duplicates under another message id: results, pipelines, groups and callbacks go on as if the body had run."""

from __future__ import annotations

import time

import dramatiq
import pytest
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as RedisLimits
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results.errors import ResultFailure

from dramatiq_idem.record import Record
from tests.tools.workbench import wait_until

PAYLOAD = {"idempotency_key": "payload", "idempotency_retention": 60_000}


@pytest.fixture(params=["stub", "redis"])
def bench(request, workbench, shared):
    """Make a workbench on shared nodes; the test runs once for each kind of broker."""
    url = None if request.param == "stub" else request.getfixturevalue("broker_url")

    def make(**options):
        limits = StubLimits() if url is None else RedisLimits(url=url)
        made = workbench(shared.urls, url, middleware=[GroupCallbacks(limits)], **options)
        made.limits = limits
        return made

    return make


def adder(bench, actor_name="b"):
    """Declare the next step of a pipeline: it logs what it was given."""

    def b(value):
        with bench.logged("b"):
            bench.log.entries.append(("value", value))
        return value + 1

    return bench.actor(b, actor_name=actor_name)


def caller(bench):
    """Declare a group's callback."""

    def callback():
        bench.log.entries.append(("start", "callback"))
        bench.log.entries.append(("called at", time.monotonic()))

    return bench.actor(callback, actor_name="callback", store_results=False)


def values(bench, what="value"):
    return [value for name, value in bench.log.entries if name == what]


# -- results


def test_both_get_the_result_and_being_busy_spends_no_retry(bench):
    """MA4: the second one is deferred with no retry to spend, and then gets the first one's result."""
    bench = bench()
    job = bench.job(**PAYLOAD, max_retries=0)
    bench.start()
    first = job.send("a", d=2.0)
    wait_until(bench.starts)
    second = job.send("a", d=2.0)
    assert bench.result(second) == 42
    assert bench.result(first) == 42
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)
    copies = [message for message in bench.spy.enqueued if message.message_id == second.message_id]
    assert len(copies) > 2
    assert {message.options.get("retries", 0) for message in copies} == {0}
    (replayed,) = bench.told("Replayed")
    assert (replayed.message_id, replayed.completed_by) == (second.message_id, first.message_id)


def test_caller_of_a_duplicate_blocks_until_the_first_is_done(bench):
    """MF3: no None while the first runs."""
    bench = bench()
    job = bench.job(**PAYLOAD)
    bench.start()
    job.send("a", d=1.5)
    wait_until(bench.starts)
    since = time.monotonic()
    assert bench.result(job.send("a", d=1.5)) == 42
    assert time.monotonic() - since > 1.0
    assert bench.starts() == 1


@pytest.mark.parametrize("out", [None, 0, "", [], False, {}, 0.0, "ü\n x", {"a": [1, None]}], ids=repr)
def test_result_is_replayed_as_it_was(bench, out):
    """MF: falsy ones are results too; their type is kept."""
    bench = bench()
    job = bench.job(**PAYLOAD)
    bench.start()
    for _ in range(2):
        message = job.send("a", out=out)
        found = bench.result(message)
        assert found == out
        assert type(found) is type(out)
    bench.join()
    assert bench.starts() == 1
    assert len(bench.told("Replayed")) == 1


def test_replay_of_a_replay_names_the_run(bench):
    """Ten duplicates change nothing: neither the record, nor a result that is stored."""
    bench = bench()
    job = bench.job(**PAYLOAD)
    bench.start()
    first = job.send("a")
    assert bench.result(first) == 42
    wait_until(lambda: bench.states() == {"done"})
    before = bench.records()
    messages = [job.send("a") for _ in range(10)]
    assert {bench.result(message) for message in messages} == {42}
    bench.join()
    assert bench.starts() == 1
    assert bench.records() == before
    assert {event.completed_by for event in bench.told("Replayed")} == {first.message_id}


def test_redelivery_of_a_replayed_message_changes_nothing(bench):
    """It is replayed again, with the same result, and never None."""
    bench = bench()
    job = bench.job(**PAYLOAD)
    bench.start()
    job.send("a")
    bench.join()
    second = job.send("a")
    assert bench.result(second) == 42
    for _ in range(3):
        bench.broker.enqueue(second.copy())
        assert bench.result(second) == 42
    bench.join()
    assert bench.result(second) == 42
    assert bench.starts() == 1


def test_result_too_large_to_be_kept_is_missing_for_the_duplicate(bench):
    """It goes to the dead letters with the reason, rather than to serve None; the first one's result stays."""
    bench = bench(max_result_bytes=10)
    job = bench.job(**PAYLOAD)
    bench.start()
    first = job.send("a", out="x" * 20)
    assert bench.result(first) == "x" * 20
    second = job.send("a", out="x" * 20)
    with pytest.raises(ResultFailure, match=r"ResultMissing.*not kept"):
        bench.result(second)
    wait_until(lambda: bench.dead_letters == 1)
    assert bench.result(first) == "x" * 20
    assert bench.starts() == 1
    assert bench.states() == {"done"}


def test_result_too_large_is_not_missed_where_nobody_reads_it(bench):
    """A duplicate of a job without stored results is simply done."""
    bench = bench(max_result_bytes=10)
    job = bench.job(**PAYLOAD, store_results=False)
    bench.start()
    for _ in range(2):
        job.send("a", out="x" * 20)
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (1, 0)


def test_result_of_just_the_allowed_size_is_replayed(bench):
    """Quotes included."""
    bench = bench(max_result_bytes=10)
    job = bench.job(**PAYLOAD)
    bench.start()
    assert [bench.result(job.send("a", out="x" * 8)) for _ in range(2)] == ["x" * 8] * 2
    assert bench.starts() == 1


# -- on_done


@pytest.mark.parametrize("same", ["id", "payload"])
@pytest.mark.parametrize(("choice", "starts"), [("skip", 1), ("replay", 1), ("run", 2)])
def test_what_is_done_is_skipped_replayed_or_run_by_choice(bench, same, choice, starts):
    """The same message again, or another one with its payload."""
    bench = bench()
    job = bench.job(**(PAYLOAD if same == "payload" else {}), idempotency_on_done=choice)
    bench.start()
    first = job.send("a")
    assert bench.result(first) == 42
    wait_until(lambda: bench.states() == {"done"})
    bench.broker.enqueue(first.copy() if same == "id" else (second := job.message("a")))
    bench.join()
    wait_until(lambda: bench.told("Skipped") or bench.told("Replayed") or bench.starts() == 2)
    assert bench.starts() == starts
    assert bench.result(first) == 42
    assert "done" in bench.states()
    if same == "payload":
        assert bench.has_result(second) == (choice != "skip")


def test_one_message_asks_to_be_run_again(bench):
    """As an option of the message."""
    bench = bench()
    job = bench.job(**PAYLOAD)
    bench.start()
    bench.result(job.send("a"))
    wait_until(lambda: bench.states() == {"done"})
    bench.result(job.send_with_options(args=("a",), idempotency_on_done="run"))
    assert bench.starts() == 2
    bench.result(job.send("a"))
    assert bench.starts() == 2


def test_messages_that_are_run_again_by_choice_still_run_one_at_a_time(bench):
    """`on_done="run"` gives up promise 3, not promise 2."""
    bench = bench()
    job = bench.job(**PAYLOAD, idempotency_on_done="run")
    bench.start()
    bench.result(job.send("a", d=0.4))
    wait_until(lambda: bench.states() == {"done"})
    for message in [job.send("a", d=0.4) for _ in range(2)]:
        bench.result(message)
    assert bench.starts() == 3
    assert bench.log.most_at_once() == 1


# -- other arguments


def test_key_with_other_arguments_is_refused(bench):
    """ME12: 5, 5, 6: run, replayed, refused with the reason; the record and the stored results are as they were."""
    bench = bench()

    def pay(order, amount):
        with bench.logged(amount):
            return 42

    pay = bench.actor(pay, idempotency_key="order:{order}")
    bench.start()
    first = pay.send("K", 5)
    assert bench.result(first) == 42
    wait_until(lambda: bench.states() == {"done"})
    before = bench.records()
    assert bench.result(pay.send("K", 5)) == 42
    third = pay.send("K", amount=6)
    with pytest.raises(ResultFailure, match=f"KeyReused.*{first.message_id}"):
        bench.result(third)
    wait_until(lambda: bench.dead_letters == 1)
    assert bench.starts() == 1
    assert bench.records() == before
    assert bench.result(first) == 42


def test_key_with_other_arguments_is_refused_while_the_first_runs(bench):
    """ME12: 6 while 5 is running: refused at once, not deferred until 5 is done."""
    bench = bench()

    def pay(order, amount):
        with bench.logged(amount):
            time.sleep(1.0)
        return 42

    pay = bench.actor(pay, idempotency_key="order:{order}")
    bench.start()
    first = pay.send("K", 5)
    wait_until(bench.starts)
    with pytest.raises(ResultFailure, match="KeyReused"):
        bench.result(pay.send("K", 6))
    assert bench.log.ends() == 0
    assert bench.result(first) == 42
    bench.join()
    assert (bench.starts(5), bench.starts(6)) == (1, 0)
    assert bench.states() == {"done"}


@pytest.mark.parametrize(
    ("fingerprint", "is_refused"),
    [
        ("all", True),
        (["order"], False),
        (["amount"], True),
        ("none", False),
        (lambda order, amount: amount // 9, False),
    ],
    ids=["all", "order", "amount", "none", "function"],
)
def test_actor_chooses_what_is_compared(workbench, shared, fingerprint, is_refused):
    """ME12: the same order with 5 and with 6."""
    bench = workbench(shared.urls)

    def pay(order, amount):
        with bench.logged(amount):
            return 42

    pay = bench.actor(pay, idempotency_key="order:{order}", idempotency_fingerprint=fingerprint)
    bench.start()
    assert bench.result(pay.send("K", 5)) == 42
    second = pay.send("K", 6)
    bench.join()
    assert bench.dead_letters == int(is_refused)
    if not is_refused:
        assert bench.result(second) == 42
    assert (bench.starts(5), bench.starts(6)) == (1, 0)


# -- pipelines


def test_pipeline_goes_on_behind_a_duplicate(bench):
    """MF4: two pipelines with an equal first step; each has its second step, with the same value."""
    bench = bench()
    a, b = bench.job("a", **PAYLOAD), adder(bench)
    bench.start()
    results = []
    for _ in range(2):
        pipe = dramatiq.pipeline([a.message("x"), b.message()], broker=bench.broker)
        results.append(pipe.run().get_result(block=True, timeout=10_000))
    bench.join()
    assert results == [43, 43]
    assert (bench.starts("x"), bench.starts("b")) == (1, 2)
    assert values(bench) == [42, 42]


def test_same_pipeline_run_again_has_one_next_step(bench):
    """MF4: its second step is known by its id."""
    bench = bench()
    a, b = bench.job("a"), adder(bench)
    bench.start()
    pipe = dramatiq.pipeline([a.message("x"), b.message()], broker=bench.broker)
    for _ in range(2):
        pipe.run()
        bench.join()
    assert pipe.get_result(block=True, timeout=10_000) == 43
    assert (bench.starts("x"), bench.starts("b")) == (1, 1)


def test_pipeline_behind_a_result_that_was_not_kept_is_refused(bench):
    """Without stored results, but with a next step that reads it: None would be a wrong value."""
    bench = bench(max_result_bytes=10)
    a = bench.job("a", **PAYLOAD, store_results=False)
    last = bench.actor(lambda value: bench.log.add("value", value), actor_name="last", store_results=False)
    bench.start()
    for times in (1, 2):
        dramatiq.pipeline([a.message("x", out="x" * 20), last.message()], broker=bench.broker).run()
        wait_until(lambda times=times: len(values(bench)) == times or bench.dead_letters)
    assert (bench.starts("x"), values(bench), bench.dead_letters) == (1, ["x" * 20], 1)


@pytest.mark.parametrize("where", ["next message", "actor"])
def test_next_step_that_ignores_the_result_does_not_miss_it(bench, where):
    """`pipe_ignore` stands on the next message or on this actor; nobody reads the result then."""
    bench = bench(max_result_bytes=10)
    ignored = {"pipe_ignore": True}
    a = bench.job("a", **PAYLOAD, store_results=False, **(ignored if where == "actor" else {}))
    b = bench.actor(lambda: bench.log.add("start", "b"), actor_name="b", store_results=False)
    bench.start()
    for times in (1, 2):
        step = b.message_with_options(**(ignored if where == "next message" else {}))
        dramatiq.pipeline([a.message("x", out="x" * 20), step], broker=bench.broker).run()
        wait_until(lambda times=times: bench.starts("b") == times or bench.dead_letters)
    assert (bench.starts("x"), bench.starts("b"), bench.dead_letters) == (1, 2, 0)


def test_step_that_ignores_the_one_before_still_hands_its_own_result_on(bench):
    """Its `pipe_ignore` is about what it is given: the next one must not be given None for a result that was lost."""
    bench = bench(max_result_bytes=10)
    a = bench.job("a", **PAYLOAD, store_results=False)
    last = bench.actor(lambda value: bench.log.add("value", value), actor_name="last", store_results=False)
    firsts = [bench.job(f"first{times}") for times in (1, 2)]
    bench.start()
    for times, first in enumerate(firsts, 1):
        middle = a.message_with_options(args=("x",), kwargs={"out": "x" * 20}, pipe_ignore=True)
        dramatiq.pipeline([first.message(times), middle, last.message()], broker=bench.broker).run()
        wait_until(lambda times=times: len(values(bench)) == times or bench.dead_letters)
    assert (bench.starts("x"), values(bench), bench.dead_letters) == (1, ["x" * 20], 1)


def test_callback_is_never_given_none_for_a_result_that_was_not_kept(bench):
    """`on_success` reads the result too."""
    bench = bench(max_result_bytes=10)
    bench.actor(lambda _data, result: bench.log.add("value", result), actor_name="done", store_results=False)
    job = bench.job(**PAYLOAD, on_success="done", store_results=False)
    bench.start()
    for times in (1, 2):
        job.send("a", out="x" * 20)
        wait_until(lambda times=times: len(values(bench)) == times or bench.dead_letters)
    assert (bench.starts("a"), values(bench)) == (1, ["x" * 20])


# -- groups


def group(bench, *messages):
    """Return a group with the callback."""
    made = dramatiq.group(messages, broker=bench.broker)
    made.add_completion_callback(bench.broker.get_actor("callback").message())
    return made


def test_group_with_two_equal_payloads_completes(bench):
    """MF5: one run, one callback, two results."""
    bench = bench()
    a = bench.job("a", **PAYLOAD)
    caller(bench)
    bench.start()
    made = group(bench, a.message("x", d=0.3), a.message("x", d=0.3)).run()
    assert list(made.get_results(block=True, timeout=10_000)) == [42, 42]
    wait_until(lambda: bench.starts("callback"))
    bench.join()
    assert (bench.starts("x"), bench.starts("callback")) == (1, 1)


def test_redelivered_member_of_a_group_does_not_count_twice(bench):
    """MF6: the callback comes once, behind the slow member."""
    bench = bench()
    a = bench.job("a")
    caller(bench)
    bench.start()
    quick = a.message("quick")
    # The group gives its members their options, so the redelivered copy is what was enqueued.
    group(bench, quick, a.message("slow", d=1.5)).run()
    wait_until(lambda: bench.told("Completed"))
    (member,) = [each for each in bench.spy.enqueued if each.message_id == quick.message_id]
    bench.broker.enqueue(member.copy())
    wait_until(lambda: bench.told("Skipped"))
    assert bench.starts("callback") == 0
    wait_until(lambda: bench.starts("callback"))
    bench.join()
    assert bench.log.ends("slow") == 1
    assert bench.log.entries.index(("end", "slow")) < bench.log.entries.index(("start", "callback"))
    assert (bench.starts("quick"), bench.starts("callback")) == (1, 1)


def test_redelivered_member_that_was_replayed_does_not_count_twice(bench):
    """MF6 with MF5: the member got its twin's result; its redelivery must not bring the callback forward."""
    bench = bench()
    a = bench.job("a", **PAYLOAD)
    caller(bench)
    bench.start()
    bench.result(a.send("quick"))
    quick = a.message("quick")
    group(bench, quick, a.message("slow", d=1.5)).run()
    wait_until(lambda: bench.told("Replayed"))
    (member,) = [each for each in bench.spy.enqueued if each.message_id == quick.message_id]
    bench.broker.enqueue(member.copy())
    wait_until(lambda: len(bench.told("Replayed")) + len(bench.told("Skipped")) == 2)
    wait_until(lambda: bench.starts("callback"))
    bench.join()
    assert bench.log.entries.index(("end", "slow")) < bench.log.entries.index(("start", "callback"))
    assert bench.starts("callback") == 1


def test_group_waits_for_the_twin_outside(bench):
    """MF7: a member whose twin runs outside of the group is not complete before that."""
    bench = bench()
    a = bench.job("a", **PAYLOAD)
    caller(bench)
    bench.start()
    a.send(1, d=1.5)
    wait_until(bench.starts)
    group(bench, a.message(1, d=1.5), a.message(2)).run()
    wait_until(lambda: bench.starts("callback"))
    bench.join()
    assert bench.log.entries.index(("end", 1)) < bench.log.entries.index(("start", "callback"))
    assert (bench.starts(1), bench.starts(2), bench.starts("callback")) == (1, 1, 1)


def test_success_callback_of_a_duplicate_is_called(bench):
    """Each message has its own success: the duplicate's caller is told too, with the same result."""
    bench = bench()

    def done(_data, result):
        bench.log.entries.append(("value", result))

    bench.actor(done, actor_name="done", store_results=False)
    job = bench.job(**PAYLOAD, on_success="done")
    bench.start()
    for _ in range(2):
        bench.result(job.send("a"))
        bench.join()
    wait_until(lambda: len(values(bench)) == 2)
    assert values(bench) == [42, 42]
    assert bench.starts("a") == 1


def test_skip_says_by_whom_and_since_when_the_key_is_done(bench):
    """MI1: key, state, the other message and its age, in the event and in its line; as `show` prints them."""
    bench = bench()
    job = bench.job(idempotency_key="job:{x}", idempotency_on_done="skip")
    bench.start()
    began = int(time.time())
    first = job.send("a")
    bench.result(first)
    wait_until(lambda: bench.states() == {"done"})
    second = job.send("a")
    (event,) = wait_until(lambda: bench.told("Skipped"))
    assert (event.key, event.reason, event.other) == ("job:a", "completed", first.message_id)
    assert event.message_id == second.message_id
    assert began <= event.since <= time.time()
    for part in ("key='job:a'", "reason='completed'", f"other='{first.message_id}'", f"since={event.since}"):
        assert part in str(event)


def test_observers_are_told_once_of_each_skip(bench):
    """MF12: with the reason in our event."""
    bench = bench()
    job = bench.job()
    bench.start()
    message = job.send("a")
    bench.result(message)
    wait_until(lambda: bench.states() == {"done"})
    for _ in range(4):
        bench.broker.enqueue(message.copy())
    bench.join()
    wait_until(lambda: len(bench.told("Skipped")) == 4)
    assert bench.spy.skipped == [message.message_id] * 4
    assert {(event.reason, event.other) for event in bench.told("Skipped")} == {("completed", message.message_id)}


# -- failures and retention


def test_failed_job_can_be_sent_again(bench):
    """MG1: after its dead letter the same payload runs at once."""
    bench = bench()
    broken = [True]

    def job(x):
        with bench.logged(x):
            if broken:
                raise ValueError
        return 42

    job = bench.actor(job, **PAYLOAD, max_retries=1, min_backoff=1, max_backoff=1)
    bench.start()
    job.send("a")
    wait_until(lambda: bench.dead_letters == 1)
    bench.join()
    broken.clear()
    assert bench.result(job.send("a")) == 42
    bench.join()
    assert bench.starts() == 3
    assert bench.told("Deferred") == []
    assert bench.states() == {"done"}


def test_duplicate_that_comes_while_the_first_waits_for_its_retry(bench):
    """MG2: one successful run; both have its result, whoever made it."""
    bench = bench()
    failures = [True]

    def job(x):
        with bench.logged(x):
            if failures:
                failures.pop()
                raise ValueError
        return 42

    job = bench.actor(job, **PAYLOAD, max_retries=3, min_backoff=1_000, max_backoff=1_000)
    bench.start()
    first = job.send("a")
    wait_until(lambda: bench.told("GivenUp"))
    second = job.send("a")
    assert [bench.result(message) for message in (second, first)] == [42, 42]
    bench.join()
    assert (bench.starts(), bench.dead_letters) == (2, 0)
    assert len(bench.told("Completed")) == 1


def test_completion_is_remembered_for_its_retention(bench):
    """MG3: counted from the completion; a copy within it is replayed, one behind it runs."""
    bench = bench(lease=500, retention=4_000)
    job = bench.job(idempotency_key="job:{x}")
    bench.start()
    job.send("a", d=2.5)
    wait_until(lambda: bench.told("Completed"))  # not for the result: asking for that takes long pauses
    time.sleep(1.7)
    job.send("a", d=2.5)
    wait_until(lambda: bench.told("Replayed") or bench.starts() == 2)
    assert bench.starts() == 1
    wait_until(lambda: bench.states("job:*") == {"none"})
    job.send("a", d=2.5)
    wait_until(lambda: bench.starts() == 2)


def test_record_can_be_read(bench):
    """One line of text per node, with the result at its end."""
    bench = bench()
    job = bench.job(idempotency_key="job:{x}")
    bench.start()
    message = job.send("a", out={"paid": [1, "x y"]})
    bench.result(message)
    wait_until(lambda: bench.states() == {"done"})
    for vote in bench.store.look("job:job:a"):
        record = Record.parse(vote.reply[0])
        assert (record.message_id, record.tail) == (message.message_id, '{"paid":[1,"x y"]}')
        assert 0 < vote.reply[1] <= 60_000
