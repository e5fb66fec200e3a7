"""What happens to one delivery, from before its body to its acknowledgement.

    enter         claim the key         granted: the body runs, the claim is renewed meanwhile
                                        completed: skip, results untouched
                                        busy, no quorum: a delayed copy into the queue, then skip
    leave         returned: record the completion (by now results are stored and the next step is queued)
                  raised, failed, skipped by another middleware: give the claim up; a retry is a new one
    acknowledge   not recorded yet, or the copy not queued yet: hold the acknowledgement and try again

A message is acknowledged without running only when its completion is recorded, or when a copy of it is back in the
queue, or when it goes to the dead letters with a reason. That somebody else runs it is no reason: he may be dead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from dramatiq import Broker
from dramatiq.broker import MessageProxy
from dramatiq.middleware import Interrupt, MiddlewareError, SkipMessage

from dramatiq_idem import delivery as deliveries
from dramatiq_idem import events
from dramatiq_idem.body import Interrupter, expect_body
from dramatiq_idem.claims import Claim, ClaimRequest, Outcome
from dramatiq_idem.delivery import (
    Delivery,
    decode_result,
    deferred_copy,
    encode_result,
    is_result_wanted,
    mute_results,
)
from dramatiq_idem.errors import (
    AcknowledgementHeldError,
    ClaimBusyError,
    KeyDerivationError,
    LeftUnacknowledgedError,
    MessageRefusedError,
    OptionError,
    StoreUnavailableError,
)
from dramatiq_idem.policies import DEFERRALS
from dramatiq_idem.record import Busy, State, Unavailable
from dramatiq_idem.rules import MessageRules, Rulebook
from dramatiq_idem.runs import Run, enter_run, leave_run
from dramatiq_idem.store import Store
from dramatiq_idem.verdict import Refuse, Replay, RunIt, RunUnprotected, Skip, decide
from redlock import Observer, clock, notify

__all__ = ["Flow"]

_PATIENCE = 2.0
"""Seconds to wait for a quorum inside of a hook, before a message goes back or its acknowledgement is held."""
_PROBE_PAUSE = 0.2
"""Seconds between attempts while the nodes cannot be asked."""
_LONGEST_WAIT, _WAIT_PAUSE = 30.0, 0.1
"""Seconds for which a worker waits for a busy key, where it is to wait, and between two looks."""
_LONGEST_HOLD, _LONGEST_HOLD_STOPPING = 300.0, 10.0
"""Seconds for which an acknowledgement waits for its completion to be recorded: working, and once the worker stops."""

_logger = logging.getLogger("dramatiq_idem")


class Flow:
    """The decisions on deliveries; one for all threads of a process.

    Args:
        store: Where records are.
        rules: What holds for a message.
        max_result_bytes: Largest result that is kept.
        observer: Is called with each event.
    """

    def __init__(self, store: Store, rules: Rulebook, max_result_bytes: int, observer: Observer) -> None:
        self._store = store
        self._rules = rules
        self._max_result_bytes = max_result_bytes
        self._observer = observer
        self._probe = threading.Lock()
        self.stopping_at: float | None = None
        """Clock reading at which the worker began to stop; None while it works."""

    # -- before the body

    def enter(self, broker: Broker, message: MessageProxy) -> None:
        """Claim the message's key; return only if its body may run.

        Raises:
            SkipMessage: The body must not run; why the message may be acknowledged is settled.
        """
        leave_run()
        expect_body(message.actor_name, None)
        delivery = Delivery()
        deliveries.attach(message, delivery)
        try:
            self._enter(broker, message, delivery)
        except MiddlewareError:
            raise
        except Exception as error:
            _logger.exception("cannot decide on message %s; it goes back to the queue", message.message_id)
            self._defer(broker, message, delivery, None, repr(error))

    def _enter(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> None:
        rules = self._rules_of(broker, message, delivery)
        if rules.key is None:
            if rules.policy.idempotent:
                self._tell(events.Unprotected, message, delivery, "no key")
            return
        holder = "" if rules.is_own_id else message.message_id
        policy = rules.policy
        request = ClaimRequest(rules.name, holder, rules.fingerprint, policy.lease_ms, policy.retention_ms)
        started = clock()
        outcome = self._claim(request, waits=policy.on_busy == "wait")
        action = decide(outcome, rules, message.message_id, is_result_wanted=is_result_wanted(broker, message))
        if isinstance(action, RunIt):
            self._run(message, delivery, action.claim)
            self._tell(events.Claimed, message, delivery, action.claim.record.takeovers, clock() - started)
        elif isinstance(action, RunUnprotected):
            self._tell(events.Unprotected, message, delivery, action.reason)
            if action.reason == "unavailable":
                delivery.unclaimed = self._store.unclaimed(request)
        elif isinstance(action, Replay):
            self._tell(events.Replayed, message, delivery, action.record.message_id)
            result = decode_result(action.record.tail)
            expect_body(message.actor_name, lambda _function, _args, _kwargs: result)
        elif isinstance(action, Skip):
            self._tell(events.Skipped, message, delivery, action.other.message_id or message.message_id, action.reason)
            mute_results(message)
            raise SkipMessage(f"{rules.key!r} is {action.reason}")
        elif isinstance(action, Refuse):
            self._refuse(message, delivery, action)
        else:
            self._defer(broker, message, delivery, action.busy, action.detail)

    def _rules_of(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> MessageRules:
        """Return what holds for the message; one that cannot be protected as it is meant to be is refused."""
        try:
            rules = delivery.rules = self._rules.of(broker, message)
        except (OptionError, KeyDerivationError) as error:
            self._refuse(message, delivery, Refuse(MessageRefusedError(str(error))))
        if rules.key is None and rules.policy.idempotent and rules.policy.require_key:
            reason = "its arguments give no idempotency key, and one is required"
            self._refuse(message, delivery, Refuse(MessageRefusedError(reason)))
        return rules

    def _claim(self, request: ClaimRequest, *, waits: bool) -> Outcome:
        """Claim, with some patience while no quorum can be asked; or, by choice, while somebody else runs the key."""
        outcome = self._store.claim(request)
        began = clock()
        while self.stopping_at is None:
            if isinstance(outcome, Unavailable) and clock() - began < _PATIENCE:
                # one thread at a time tries; when it succeeds the others follow at once
                if not self._probe.acquire(timeout=_PATIENCE):
                    break
                try:
                    outcome = self._store.claim(request)
                    if isinstance(outcome, Unavailable):
                        time.sleep(_PROBE_PAUSE)
                finally:
                    self._probe.release()
            elif isinstance(outcome, Busy) and waits and clock() - began < _LONGEST_WAIT:
                time.sleep(min(_WAIT_PAUSE, outcome.left))
                outcome = self._store.claim(request)
            else:
                break
        return outcome

    def _run(self, message: MessageProxy, delivery: Delivery, claim: Claim) -> None:
        """Let the body run under a claim that is kept alive."""
        delivery.claim = claim
        interrupter = Interrupter() if delivery.rules and delivery.rules.policy.on_lost == "interrupt" else None

        def on_lost(cause: str) -> None:
            if delivery.finished_at is None:
                self._tell(events.LeaseLost, message, delivery, cause)
                if interrupter is not None:
                    interrupter.fire()

        def runner(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with interrupter or contextlib.nullcontext():
                result = function(*args, **kwargs)
            return self._settled_result(message, delivery, claim, result)

        delivery.keeper = self._store.keep(claim, on_lost)
        message.options.pop(DEFERRALS, None)  # a retry of this run counts anew
        expect_body(message.actor_name, runner)
        enter_run(Run(delivery.key or "", claim, self._store))

    def _settled_result(self, message: MessageProxy, delivery: Delivery, claim: Claim, result: Any) -> Any:
        """Return the body's result; or, where the lease was lost and another run was completed, that one's.

        A stored result never changes, and the other one may be stored already.
        """
        if not claim.term.is_lost:
            return result
        other = self._store.completion(claim.request.name)
        if other is None or other.token == claim.record.token:
            return result
        self._tell(events.DoubleRun, message, delivery, other.message_id or message.message_id)
        return decode_result(other.tail) if other.tail else result

    def _refuse(self, message: MessageProxy, delivery: Delivery, refusal: Refuse) -> NoReturn:
        """Send a message to the dead letters without running it."""
        if refusal.claim is not None:
            self._store.abandon(refusal.claim, State.FAILED, str(refusal.error))
        self._tell(events.DeadLettered, message, delivery, str(refusal.error))
        message.fail()
        raise refusal.error

    def _defer(
        self, broker: Broker, message: MessageProxy, delivery: Delivery, busy: Busy | None, detail: str
    ) -> NoReturn:
        """Put a delayed copy into the queue, then skip this delivery; no retry is spent."""
        copy = deferred_copy(message, busy)
        mute_results(message)  # behind the copy: it is only this delivery that has no result
        self._tell(events.Deferred, message, delivery, "busy" if busy else "unavailable", copy.delay_ms, detail)
        try:
            broker.enqueue(copy.message, delay=copy.delay_ms)
        except Exception as error:  # noqa: BLE001 - of whatever broker; the acknowledgement waits for it
            _logger.warning("the broker did not take the copy of message %s: %r", message.message_id, error)
            delivery.postponed = copy
        raise (ClaimBusyError if busy else StoreUnavailableError)(f"deferred by {copy.delay_ms} ms: {detail}")

    # -- after the body

    def leave(self, message: MessageProxy, result: object, exception: BaseException | None) -> None:
        """Record a completion, or give the claim up; the first call for a delivery counts."""
        leave_run()
        expect_body(message.actor_name, None)
        delivery = deliveries.of(message)
        if delivery is None or delivery.finished_at is not None:
            return
        delivery.finished_at = clock()
        if delivery.unclaimed is not None and exception is None and not message.failed:
            self._store.complete(delivery.unclaimed, encode_result(result, self._max_result_bytes))
        if delivery.claim is None:
            return
        if exception is None and not message.failed:
            delivery.result = encode_result(result, self._max_result_bytes)
            try:
                self._record(message, delivery)
            except Interrupt:  # meant for the body, which has returned: what is done must still be recorded
                self._record(message, delivery)
        else:
            self.give_up(message)

    def _record(self, message: MessageProxy, delivery: Delivery) -> bool:
        """Try once to record the completion; afterwards the claim needs no renewal."""
        claim = delivery.claim
        if claim is None:
            return True
        recorded = self._store.complete(claim, delivery.result)
        if recorded is None:
            return False
        delivery.claim = None
        delivery.end_claim()
        if recorded.record.token == claim.record.token:
            self._tell(events.Completed, message, delivery, clock() - (delivery.finished_at or clock()))
        else:
            self._tell(events.DoubleRun, message, delivery, recorded.record.message_id or message.message_id)
        return True

    def give_up(self, message: MessageProxy) -> None:
        """Give the claim up: free for a retry, or failed if the message goes to the dead letters."""
        leave_run()
        delivery = deliveries.of(message)
        if delivery is None or delivery.claim is None:
            return
        claim, delivery.claim = delivery.claim, None
        delivery.end_claim()
        state = State.FAILED if message.failed else State.FREE
        self._store.abandon(claim, state, "")
        self._tell(events.GivenUp, message, delivery, state.value)

    # -- before the acknowledgement

    def acknowledge(self, broker: Broker, message: MessageProxy) -> None:
        """Return when the message may be acknowledged.

        Raises:
            AcknowledgementHeldError: Not yet; Dramatiq asks again in five seconds.
            LeftUnacknowledgedError: Not at all: the worker stops, and the broker will deliver the message again.
        """
        delivery = deliveries.of(message)
        if delivery is None:
            return
        if delivery.postponed is not None:
            self._enqueue_postponed(broker, message, delivery)
        if delivery.claim is not None and delivery.finished_at is not None:
            self._insist_on_recording(message, delivery, delivery.finished_at)
        deliveries.pop(message)

    def _enqueue_postponed(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> None:
        copy = delivery.postponed
        try:
            if copy is not None:
                broker.enqueue(copy.message, delay=copy.delay_ms)
        except Exception as error:
            text = f"no copy of message {message.message_id} is in the queue yet"
            if self.stopping_at is None:
                raise AcknowledgementHeldError(text) from error
            raise LeftUnacknowledgedError(text) from error
        delivery.postponed = None

    def _insist_on_recording(self, message: MessageProxy, delivery: Delivery, finished_at: float) -> None:
        give_up = clock() + _PATIENCE
        while not self._record(message, delivery):
            now = clock()
            stopping = now if self.stopping_at is None else self.stopping_at
            if now - finished_at >= _LONGEST_HOLD or now - stopping >= _LONGEST_HOLD_STOPPING:
                delivery.claim = None
                delivery.end_claim()
                self._tell(events.CompletionUnrecorded, message, delivery, now - finished_at)
                return
            if now >= give_up:
                raise AcknowledgementHeldError(f"the completion of message {message.message_id} is not recorded yet")
            time.sleep(_PROBE_PAUSE)

    def _tell(self, event: Callable[..., Any], message: MessageProxy, delivery: Delivery, *details: Any) -> None:
        notify(self._observer, event(delivery.key, message.actor_name, message.message_id, *details))
