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
from dramatiq_idem.claims import Claim, ClaimRequest, Outcome
from dramatiq_idem.delivery import Delivery, deferred_copy, encode_result, mute_results
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
from dramatiq_idem.record import Busy, Completed, State, Unavailable
from dramatiq_idem.rules import Rulebook
from dramatiq_idem.runs import Run, enter_run, leave_run
from dramatiq_idem.store import Store
from redlock import Observer, clock, notify

__all__ = ["Flow"]

_PATIENCE = 2.0
"""Seconds to wait for a quorum inside of a hook, before a message goes back or its acknowledgement is held."""
_PROBE_PAUSE = 0.2
"""Seconds between attempts while the nodes cannot be asked."""
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
        try:
            rules = delivery.rules = self._rules.of(broker, message)
        except (OptionError, KeyDerivationError) as error:
            _refuse(message, str(error))
        if rules.key is None:
            if rules.policy.idempotent and rules.policy.require_key:
                _refuse(message, "its arguments give no idempotency key, and one is required")
            if rules.policy.idempotent:
                self._tell(events.Unprotected, message, delivery)
            return
        holder = "" if rules.is_own_id else message.message_id
        request = ClaimRequest(rules.name, holder, "", rules.policy.lease_ms, rules.policy.retention_ms)
        started = clock()
        outcome = self._claim(request)
        if isinstance(outcome, Claim):
            self._run(message, delivery, outcome)
            self._tell(events.Claimed, message, delivery, outcome.record.takeovers, clock() - started)
        elif isinstance(outcome, Completed):
            self._tell(events.Skipped, message, delivery, outcome.record.message_id or message.message_id)
            mute_results(message)
            raise SkipMessage(f"{rules.key!r} is completed")
        elif isinstance(outcome, Busy):
            self._defer(broker, message, delivery, outcome, f"run by {outcome.record.message_id or message.message_id}")
        else:
            self._defer(broker, message, delivery, None, "; ".join(f"{n}: {why}" for n, why in outcome.causes.items()))

    def _claim(self, request: ClaimRequest) -> Outcome:
        """Claim, with some patience while no quorum can be asked; one thread at a time tries again."""
        outcome = self._store.claim(request)
        give_up = clock() + _PATIENCE
        while isinstance(outcome, Unavailable) and self.stopping_at is None:
            if not self._probe.acquire(timeout=max(0.0, give_up - clock())):
                break
            try:
                outcome = self._store.claim(request)
                if isinstance(outcome, Unavailable):
                    time.sleep(max(0.0, min(_PROBE_PAUSE, give_up - clock())))
            finally:
                self._probe.release()
            if clock() >= give_up:
                break
        return outcome

    def _run(self, message: MessageProxy, delivery: Delivery, claim: Claim) -> None:
        """Let the body run under a claim that is kept alive."""
        delivery.claim = claim

        def on_lost(cause: str) -> None:
            if delivery.finished_at is None:
                self._tell(events.LeaseLost, message, delivery, cause)

        delivery.keeper = self._store.keep(claim, on_lost)
        message.options.pop(DEFERRALS, None)  # a retry of this run counts anew
        enter_run(Run(delivery.key or "", claim))

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
        delivery = deliveries.of(message)
        if delivery is None or delivery.claim is None or delivery.finished_at is not None:
            return
        delivery.finished_at = clock()
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
        is_ours = recorded.record.token == claim.record.token
        self._tell(events.Completed, message, delivery, clock() - (delivery.finished_at or clock()), is_ours)
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


def _refuse(message: MessageProxy, reason: str) -> NoReturn:
    """Send a message to the dead letters without running it."""
    message.fail()
    raise MessageRefusedError(reason)
