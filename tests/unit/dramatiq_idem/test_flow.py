"""What happens to a delivery, with a store that answers as the test says and a clock that does not wait."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import dramatiq
import pytest
from dramatiq import Message
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import BrokerConnectionError
from dramatiq.middleware import MiddlewareError, Shutdown, SkipMessage

from dramatiq_idem import (
    AcknowledgementHeldError,
    ClaimBusyError,
    Idempotency,
    LeftUnacknowledgedError,
    MessageRefusedError,
    StoreUnavailableError,
    completion,
    current_run,
    entry,
    events,
)
from dramatiq_idem import middleware as middleware_module
from dramatiq_idem.claim import Claim, Recorded
from dramatiq_idem.judgement import Busy, Completed, Unavailable
from dramatiq_idem.policies import DEFERRALS
from dramatiq_idem.record import Record, State
from redlock import LeaseLostError, SettingsError, Term

RUNNING = Record(State.RUNNING, 0, 1, "ours", 2, 0, "", "", "")
THEIRS = Record(State.RUNNING, 0, 1, "theirs", 0, 0, "", "")
DONE = Record(State.DONE, 0, 1, "theirs", 0, 0, "", "", "42")
DOWN = Unavailable({"node0": "refused", "node1": "no reply in time"})


class ManualTime:
    """A clock that sleeping moves."""

    now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class ScriptedStore:
    """Answers claims and completions in the order given, the last one for ever; notes what it is asked."""

    max_ttl_ms = 30_000

    def __init__(self, clock):
        self.clock = clock
        self.claims = ["granted"]
        self.completions = ["recorded"]
        self.asked = []
        self.kept = 0
        self.on_lost = None

    @staticmethod
    def _next(answers):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def check(self):
        self.asked.append("check")

    def claim(self, request):
        self.asked.append("claim")
        self.request = request
        answer = self._next(self.claims)
        if answer != "granted":
            return answer
        term = Term(request.name, 30.0, self.clock(), self.clock() + 29.0, self.clock)
        return Claim(request, RUNNING, term)

    def keep(self, claim, on_lost, on_renewed=None):
        self.kept += 1
        self.on_lost = on_lost
        return self

    def end(self):
        self.kept -= 1

    def complete(self, claim, result):
        self.asked.append(f"complete {result}")
        answer = self._next(self.completions)
        if answer == "recorded":
            return Recorded(claim.record.completed(result))
        return answer

    def abandon(self, claim, state, reason):
        self.asked.append(f"abandon {state.value}")
        return True

    def close(self):
        self.asked.append("close")


class FullBroker(StubBroker):
    """Refuses to take messages as often as it is told."""

    refusals = 0

    def enqueue(self, message, *, delay=None):
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the broker is away")
        return super().enqueue(message, delay=delay)


@pytest.fixture
def bench(monkeypatch):
    """The middleware on a broker without workers, and what a test wants to look at."""
    clock = ManualTime()
    for module in (entry, completion):
        monkeypatch.setattr(module, "clock", clock)
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=clock.sleep))
    monkeypatch.setattr(middleware_module, "clock", clock)
    store = ScriptedStore(clock)
    broker = FullBroker()
    seen = []
    middleware = Idempotency(store=store, observer=seen.append).install(broker)
    dramatiq.actor(lambda *args, **kwargs: None, actor_name="pay", broker=broker)

    def queued():
        return [Message.decode(data) for data in list(broker.queues["default.DQ"].queue)]

    return SimpleNamespace(clock=clock, store=store, broker=broker, seen=seen, queued=queued, desk=middleware._desk)


def declare(bench, actor_name, fn=lambda x=None: None, **options):
    dramatiq.actor(fn, actor_name=actor_name, broker=bench.broker, **options)


def delivery(*, actor_name="pay", args=(1,), **options):
    return MessageProxy(Message("default", actor_name, args, {}, options))


def enter(bench, message):
    bench.broker.emit_before("process_message", message)


def leave(bench, message, **outcome):
    bench.broker.emit_after("process_message", message, **outcome)


def before_ack(bench, message):
    bench.broker.emit_before("ack", message)


def told(bench, kind):
    return [event for event in bench.seen if isinstance(event, kind)]


def started(bench, **options):
    """Return a delivery whose body runs."""
    message = delivery(**options)
    enter(bench, message)
    return message


# -- a run


def test_run_is_claimed_kept_completed_and_acknowledged(bench):
    """One claim and one completion; renewed in between, and not afterwards."""
    message = started(bench)
    assert bench.store.kept == 1
    assert bench.store.request.name == f"pay:{message.message_id}"
    assert (bench.store.request.lease_ms, bench.store.request.retention_ms) == (30_000, 86_400_000)
    assert bench.store.request.message_id == ""  # the name has it
    leave(bench, message, result={"a": 1})
    assert bench.store.kept == 0
    before_ack(bench, message)
    assert bench.store.asked == ["claim", 'complete {"a":1}']
    assert [type(event) for event in bench.seen] == [events.Claimed, events.Completed]
    assert "_dramatiq_idem" not in vars(message)


def test_body_knows_its_run(bench):
    """Key for a gateway, takeovers, and whether the lease is still good; gone once the body has returned."""
    message = started(bench)
    run = current_run()
    assert (run.key, run.takeovers, run.lost) == (message.message_id, 2, False)
    assert run.remaining() == pytest.approx(29.0)
    bench.clock.now += 29.0
    assert run.lost
    assert run.remaining() == 0.0
    with pytest.raises(LeaseLostError):
        run.check()
    leave(bench, message)
    assert current_run() is None


def test_run_of_an_earlier_message_is_not_seen_by_the_next(bench):
    """A delivery whose hooks did not run to their end leaves nothing behind in its thread."""
    started(bench)
    assert current_run()
    bench.store.claims = [Completed(DONE, True)]
    with pytest.raises(SkipMessage):
        enter(bench, delivery())
    assert current_run() is None


def test_lost_lease_is_told_once_and_the_run_goes_on(bench):
    """What the body has done is recorded all the same."""
    message = started(bench)
    bench.store.on_lost("too slow")
    leave(bench, message)
    bench.store.on_lost("too slow")
    assert [event.cause for event in told(bench, events.LeaseLost)] == ["too slow"]
    assert bench.store.asked == ["claim", "complete null"]


def test_completion_of_another_run_is_told(bench):
    """A double run that we can see is an event."""
    bench.store.completions = [Recorded(DONE)]
    leave(bench, started(bench))
    assert [type(event) for event in bench.seen] == [events.Claimed, events.DoubleRun]


@pytest.mark.parametrize("option", ["message", "actor"])
def test_switched_off_protection_asks_nobody(bench, option):
    """`idempotent=False` is a value, not "not given"."""
    declare(bench, "free", idempotent=False)
    message = started(bench, **({"idempotent": False} if option == "message" else {"actor_name": "free"}))
    leave(bench, message)
    before_ack(bench, message)
    assert bench.store.asked == []
    assert bench.seen == []


# -- the body raised


@pytest.mark.parametrize(("failed", "state"), [(False, "free"), (True, "failed")])
def test_failed_body_gives_its_claim_up(bench, failed, state):
    """Free for the retry at once, or failed for people to see if its retries are used up; never recorded as done."""
    message = started(bench)
    message.failed = failed
    leave(bench, message, exception=ValueError())
    assert bench.store.asked == ["claim", f"abandon {state}"]
    assert bench.store.kept == 0
    assert [event.state for event in told(bench, events.GivenUp)] == [state]


def test_message_failed_without_an_exception_is_not_done(bench):
    """H18: another hook failed the message, its body never ran."""
    message = started(bench)
    message.fail()
    leave(bench, message)
    assert bench.store.asked == ["claim", "abandon failed"]


def test_only_the_first_after_hook_counts(bench):
    """H13: an interrupt in an after hook makes Dramatiq call the hooks again, now with an exception."""
    message = started(bench)
    leave(bench, message, result=1)
    leave(bench, message, exception=Shutdown())
    before_ack(bench, message)
    assert bench.store.asked == ["claim", "complete 1"]


def test_first_after_hook_counts_while_its_completion_is_open(bench):
    """H13: nor does a second call give up a claim whose completion is not recorded yet."""
    bench.store.completions = [None, "recorded"]
    message = started(bench)
    leave(bench, message, result=1)
    leave(bench, message, exception=Shutdown())
    assert bench.store.kept == 1
    before_ack(bench, message)
    assert bench.store.asked == ["claim", "complete 1", "complete 1"]


def test_interrupt_while_recording_is_swallowed(bench):
    """H13: it was meant for the body, which has returned."""
    bench.store.completions = [Shutdown(), "recorded"]
    message = started(bench)
    leave(bench, message, result=1)
    assert bench.store.asked == ["claim", "complete 1", "complete 1"]
    assert told(bench, events.Completed)


def test_skip_by_another_middleware_gives_the_claim_up(bench):
    """H17: or the key would be busy until the lease ends."""
    message = started(bench)
    bench.broker.emit_after("skip_message", message)
    assert bench.store.asked == ["claim", "abandon free"]
    before_ack(bench, message)
    assert bench.store.kept == 0


def test_hooks_of_a_foreign_delivery_do_nothing(bench):
    """H19: delayed messages and unknown actors are acknowledged without having been entered."""
    message = delivery()
    leave(bench, message, result=1)
    bench.broker.emit_after("skip_message", message)
    before_ack(bench, message)
    assert bench.store.asked == []


# -- duplicates


def test_completed_message_is_skipped_without_a_result(bench):
    """H15: Results would store None over the real one."""
    bench.store.claims = [Completed(DONE, True)]
    message = delivery()
    with pytest.raises(SkipMessage):
        enter(bench, message)
    assert message.options["store_results"] is False
    assert bench.queued() == []
    before_ack(bench, message)
    assert bench.store.asked == ["claim"]
    assert [type(event) for event in bench.seen] == [events.Skipped]


def test_busy_message_goes_back_before_it_is_skipped(bench):
    """Its copy is in the queue, with retries unchanged and its result to be stored, when the skip is raised."""
    bench.store.claims = [Busy(THEIRS, 20.0)]
    message = delivery(retries=2)
    with pytest.raises(ClaimBusyError):
        enter(bench, message)
    (copy,) = bench.queued()
    assert copy.message_id == message.message_id
    assert copy.options["retries"] == 2
    assert copy.options[DEFERRALS] == ["busy", 1]
    assert "store_results" not in copy.options
    assert message.options["store_results"] is False
    before_ack(bench, message)
    (event,) = bench.seen
    assert (event.reason, event.key) == ("busy", message.message_id)
    assert 187 <= event.delay_ms <= 313


def test_deferrals_are_forgotten_once_the_body_runs(bench):
    """A retry of this run counts anew."""
    message = started(bench, **{DEFERRALS: ["busy", 9]})
    assert DEFERRALS not in message.options


def test_copy_that_the_broker_refuses_is_queued_before_the_acknowledgement(bench):
    """The message stays unacknowledged until the broker takes its copy."""
    bench.store.claims = [Busy(THEIRS, 20.0)]
    bench.broker.refusals = 3
    message = delivery()
    with pytest.raises(ClaimBusyError):
        enter(bench, message)
    assert bench.queued() == []
    for _ in range(2):
        with pytest.raises(AcknowledgementHeldError):
            before_ack(bench, message)
    before_ack(bench, message)
    (copy,) = bench.queued()
    assert "store_results" not in copy.options
    before_ack(bench, message)
    assert len(bench.queued()) == 1


def test_copy_that_the_broker_refuses_while_the_worker_stops_stays_unacknowledged(bench):
    """Then the broker delivers the message itself again."""
    bench.store.claims = [Busy(THEIRS, 20.0)]
    bench.broker.refusals = 9
    message = delivery()
    with pytest.raises(ClaimBusyError):
        enter(bench, message)
    bench.broker.emit_before("worker_shutdown", None)
    with pytest.raises(LeftUnacknowledgedError) as error:
        before_ack(bench, message)
    assert not isinstance(error.value, BrokerConnectionError)  # or Dramatiq would ask for ever


# -- no quorum


def test_no_quorum_is_waited_for_a_little(bench):
    """A short outage costs no turn round the queue."""
    bench.store.claims = [DOWN, DOWN, "granted"]
    message = started(bench)
    assert bench.store.asked == ["claim"] * 3
    assert 1000.0 < bench.clock.now < 1002.1
    leave(bench, message)


def test_no_quorum_sends_the_message_back(bench):
    """After two seconds, with a longer delay than when busy; nothing is spent, no result is written."""
    bench.store.claims = [DOWN]
    message = delivery(retries=1)
    with pytest.raises(StoreUnavailableError):
        enter(bench, message)
    assert 1002.0 <= bench.clock.now <= 1002.5
    (copy,) = bench.queued()
    assert copy.options["retries"] == 1
    assert message.options["store_results"] is False
    (event,) = bench.seen
    assert event.reason == "unavailable"
    assert 3750 <= event.delay_ms <= 6250
    assert "node0: refused" in event.detail


def test_stopping_worker_does_not_wait_for_a_quorum(bench):
    """The copy goes back at once, so that the shutdown is not held up."""
    bench.broker.emit_before("worker_shutdown", None)
    bench.store.claims = [DOWN]
    with pytest.raises(StoreUnavailableError):
        enter(bench, delivery())
    assert bench.clock.now == 1000.0
    assert len(bench.queued()) == 1


def test_next_worker_of_the_process_waits_again(bench):
    """Booting ends the stopping."""
    bench.broker.emit_before("worker_shutdown", None)
    bench.broker.emit_before("worker_boot", None)
    assert "check" in bench.store.asked
    bench.store.claims = [DOWN, "granted"]
    started(bench)


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), SettingsError("closed"), ConnectionError(), RecursionError(), KeyError()], ids=repr
)
def test_unexpected_error_never_lets_the_body_run(bench, error, caplog):
    """H2: Dramatiq swallows what is no MiddlewareError and runs the actor; so the message goes back instead."""
    bench.store.claims = [error]
    message = delivery()
    with pytest.raises(StoreUnavailableError):
        enter(bench, message)
    assert len(bench.queued()) == 1
    assert current_run() is None
    assert type(error).__name__ in caplog.text


def test_error_behind_a_granted_claim_gives_it_up(bench, monkeypatch):
    """No thread for the renewal, say: the body does not run, and the key is free for the copy."""

    def keep(claim, on_lost, on_renewed=None):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bench.store, "keep", keep)
    message = delivery()
    with pytest.raises(StoreUnavailableError):
        enter(bench, message)
    bench.broker.emit_after("skip_message", message)
    assert bench.store.asked == ["claim", "abandon free"]
    before_ack(bench, message)


@pytest.mark.parametrize(
    ("reason", "outcome", "counted"),
    [
        *[("busy", Busy(THEIRS, 20.0), counted) for counted in [(), ("x",), (None,), (-5,), (float("inf"),), (1, 2)]],
        *[("unavailable", DOWN, counted) for counted in [(-5,), (float("inf"),), (1, 2)]],
        *[("unavailable", DOWN, counted) for counted in [(), ("x",), (None,)]],
    ],
)
def test_odd_count_of_deferrals_never_lets_the_body_run(bench, reason, outcome, counted):
    """H2: message options come from anywhere; an error while deferring would be swallowed, and the body would run."""
    bench.store.claims = [outcome]
    with pytest.raises(SkipMessage):
        enter(bench, delivery(**{DEFERRALS: [reason, *counted]}))
    assert len(bench.queued()) == 1


def test_failing_observer_decides_nothing(bench, monkeypatch):
    """Watching never decides."""

    def observer(event):
        raise ValueError("no space left")

    monkeypatch.setattr(bench.desk, "_observer", observer)
    message = started(bench)
    leave(bench, message)
    bench.store.claims = [Completed(DONE, True)]
    with pytest.raises(SkipMessage):
        enter(bench, delivery())
    assert bench.store.asked == ["claim", "complete null", "claim"]


# -- refused


@pytest.mark.parametrize(
    "options",
    [{"idempotency_kye": "x"}, {"idempotency_key": ""}, {"idempotency_key": "payload"}, {"idempotency_lease": 500},
     {"idempotent": "yes"}, {"idempotency_retention": -1}],
    ids=str,
)  # fmt: skip
def test_wrong_message_option_goes_to_the_dead_letters(bench, options):
    """MI4: ignoring it would leave the job unprotected; trying again cannot help."""
    message = delivery(**options)
    with pytest.raises(MessageRefusedError):
        enter(bench, message)
    assert message.failed
    assert bench.store.asked == []


def test_message_without_a_key_runs_unprotected_and_is_counted(bench):
    """ME6: it is a duplicate of nothing."""
    declare(bench, "order", idempotency_key="order:{x}")
    message = delivery(actor_name="order", args=())
    enter(bench, message)
    leave(bench, message)
    assert bench.store.asked == []
    assert [(type(event), event.level) for event in bench.seen] == [(events.Unprotected, logging.WARNING)]


def test_message_without_a_required_key_goes_to_the_dead_letters(bench):
    """ME6: `require_key` is for jobs that must not run unprotected."""
    declare(bench, "order", idempotency_key="order:{x}", idempotency_require_key=True)
    message = delivery(actor_name="order", args=())
    with pytest.raises(MessageRefusedError):
        enter(bench, message)
    assert message.failed


def test_key_function_that_raises_goes_to_the_dead_letters(bench):
    """H2: it would be swallowed, and the body would run."""

    def key(*args):
        raise ZeroDivisionError

    declare(bench, "order", idempotency_key=key)
    message = delivery(actor_name="order")
    with pytest.raises(MessageRefusedError):
        enter(bench, message)
    assert message.failed


# -- before the acknowledgement


def test_unrecorded_completion_holds_the_acknowledgement(bench):
    """Dramatiq asks again every five seconds; the lease is kept meanwhile, and recorded it is."""
    bench.store.completions = [None] * 30 + ["recorded"]
    message = started(bench)
    leave(bench, message, result=1)
    assert not may_acknowledge(bench, message)
    assert bench.store.kept == 1
    assert not may_acknowledge(bench, message)
    assert may_acknowledge(bench, message)
    assert bench.store.kept == 0
    assert told(bench, events.Completed)[0].seconds > 5.0
    assert not told(bench, events.CompletionUnrecorded)


def test_held_acknowledgement_is_understood_by_dramatiq():
    """Not the one kind: it would be swallowed, and the message acknowledged. Not the other: nobody would ask again."""
    assert issubclass(AcknowledgementHeldError, MiddlewareError)
    assert issubclass(AcknowledgementHeldError, BrokerConnectionError)


def may_acknowledge(bench, message):
    """Ask once, as Dramatiq does: five seconds pass where the answer is no."""
    try:
        before_ack(bench, message)
    except AcknowledgementHeldError:
        bench.clock.now += 5.0
        return False
    return True


def hold_until_acknowledged(bench, message):
    """Return for how long Dramatiq was kept from acknowledging."""
    began = bench.clock.now
    for _ in range(200):
        if may_acknowledge(bench, message):
            return bench.clock.now - began
    pytest.fail("the acknowledgement is held for ever")


def test_acknowledgement_is_not_held_for_ever(bench):
    """After five minutes the message is acknowledged, with a critical event: another copy may run again."""
    bench.store.completions = [None]
    message = started(bench)
    leave(bench, message)
    assert 295.0 <= hold_until_acknowledged(bench, message) <= 310.0
    (event,) = told(bench, events.CompletionUnrecorded)
    assert event.level == logging.CRITICAL
    assert event.waited >= 300.0
    assert bench.store.kept == 0
    assert not told(bench, events.Completed)


def test_stopping_worker_holds_for_ten_seconds(bench):
    """A shutdown waits that long for the completion, and no longer."""
    bench.store.completions = [None]
    message = started(bench)
    leave(bench, message)
    with pytest.raises(AcknowledgementHeldError):
        before_ack(bench, message)
    bench.broker.emit_before("worker_shutdown", None)
    assert 5.0 <= hold_until_acknowledged(bench, message) <= 15.0
    assert told(bench, events.CompletionUnrecorded)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SettingsError("one server twice"), ValueError()], ids=repr)
def test_error_while_recording_does_not_acknowledge(bench, error):
    """A store that raises has recorded nothing: the acknowledgement is held, and the claim not renewed for ever."""
    bench.store.completions = [error, error, "recorded"]
    message = started(bench)
    leave(bench, message)
    hold_until_acknowledged(bench, message)
    assert told(bench, events.Completed)
    assert bench.store.kept == 0
