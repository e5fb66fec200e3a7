"""Before the body: claim the key, and let the body run, be replaced by a result, or be kept from running.

A message is acknowledged without running only when its completion is recorded, or when a copy of it is back in the
queue, or when it goes to the dead letters with a reason. That somebody else runs it is no reason: he may be dead. What
is to be done is decided in verdict.py; here it is done.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from dramatiq import Broker
from dramatiq.broker import MessageProxy
from dramatiq.middleware import MiddlewareError, SkipMessage

from dramatiq_idem import delivery as deliveries
from dramatiq_idem import events
from dramatiq_idem.body import Interrupter, expect_body
from dramatiq_idem.claim import Claim, ClaimRequest, Outcome
from dramatiq_idem.delivery import (
    Delivery,
    decode_result,
    deferred_copy,
    has_follow_up,
    has_stored_result,
    is_result_wanted,
    mute_results,
)
from dramatiq_idem.desk import PATIENCE, PROBE_PAUSE, Desk
from dramatiq_idem.doubles import settled_result
from dramatiq_idem.errors import (
    ClaimBusyError,
    KeyDerivationError,
    MessageRefusedError,
    OptionError,
    StoreUnavailableError,
)
from dramatiq_idem.judgement import Busy, Completed, Unavailable
from dramatiq_idem.policies import DEFERRALS
from dramatiq_idem.record import State
from dramatiq_idem.rules import MessageRules, Rulebook
from dramatiq_idem.runs import Run, enter_run, leave_run
from dramatiq_idem.verdict import Defer, Refuse, Replay, RunIt, RunUnprotected, Skip, decide
from redlock import clock

__all__ = ["Entry"]

_LONGEST_WAIT, _WAIT_PAUSE = 30.0, 0.1
"""Seconds for which a worker waits for a busy key, where it is to wait, and between two looks."""

_REPLAYS, _AGAIN = "%replay:", "%again:"
"""Begin the names of records of replays, and of runs of completed keys; elsewhere percent signs are encoded there."""

_logger = logging.getLogger("dramatiq_idem")


class Entry:
    """What happens to a delivery before its body.

    Args:
        desk: The store, and who is told.
        rules: What holds for a message.
    """

    def __init__(self, desk: Desk, rules: Rulebook) -> None:
        self._desk = desk
        self._rules = rules
        self._probe = threading.Lock()

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
                self._desk.tell(events.Unprotected, message, delivery, "no key")
            return
        holder = "" if rules.is_own_id else message.message_id
        policy = rules.policy
        replays = policy.on_failed == "replay"
        request = ClaimRequest(rules.name, holder, rules.fingerprint, policy.lease_ms, policy.retention_ms, replays)
        started = clock()
        outcome = self._claim(request, waits=policy.on_busy == "wait")
        action = decide(outcome, rules, message.message_id, is_result_wanted=is_result_wanted(broker, message))
        if isinstance(action, Replay) and has_follow_up(broker, message):
            action = self._claim_replay(message, delivery, request, action)
        if isinstance(action, RunUnprotected) and action.reason == "done":
            action = self._claim_again(delivery, request)
        if isinstance(action, RunIt):
            self._run(message, delivery, action.claim)
            self._desk.tell(events.Claimed, message, delivery, action.claim.record.takeovers, clock() - started)
        elif isinstance(action, RunUnprotected):
            self._desk.tell(events.Unprotected, message, delivery, action.reason)
            delivery.unclaimed = request
        elif isinstance(action, Replay):
            self._desk.tell(events.Replayed, message, delivery, action.record.message_id)
            result = decode_result(action.record.tail)
            expect_body(message.actor_name, lambda _function, _args, _kwargs: result)
        elif isinstance(action, Skip):
            other = action.other.message_id or message.message_id
            self._desk.tell(events.Skipped, message, delivery, other, action.reason, action.other.first_claimed)
            mute_results(message)
            raise SkipMessage(f"{rules.key!r} is {action.reason}")
        elif isinstance(action, Refuse):
            self._refuse(broker, message, delivery, action)
        else:
            self._defer(broker, message, delivery, action.busy, action.detail)

    def _rules_of(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> MessageRules:
        """Return what holds for the message; one that cannot be protected as it is meant to be is refused."""
        try:
            rules = delivery.rules = self._rules.of(broker, message)
        except (OptionError, KeyDerivationError) as error:
            self._refuse(broker, message, delivery, Refuse(MessageRefusedError(str(error))))
        if rules.key is None and rules.policy.idempotent and rules.policy.require_key:
            reason = "its arguments give no idempotency key, and one is required"
            self._refuse(broker, message, delivery, Refuse(MessageRefusedError(reason)))
        return rules

    def _claim_again(self, delivery: Delivery, request: ClaimRequest) -> RunIt | Defer:
        """Claim a run of a key that is completed and is to run again: one at a time, and never completed anew."""
        outcome = self._claim(request._replace(name=f"{_AGAIN}{request.name}", replays_failures=False), waits=False)
        if isinstance(outcome, Claim):
            delivery.is_again = True
            return RunIt(outcome)
        return Defer(outcome if isinstance(outcome, Busy) else None, "another run of it is under way")

    def _claim_replay(
        self, message: MessageProxy, delivery: Delivery, request: ClaimRequest, replay: Replay
    ) -> Replay | Skip | Defer:
        """Claim a replay like a run of its own: what follows it must not follow twice if it is redelivered, too."""
        name = f"{_REPLAYS}{request.name}:{message.message_id}"
        own = request._replace(name=name, message_id="", fingerprint="", replays_failures=False)
        outcome = self._claim(own, waits=False)
        if isinstance(outcome, Completed):
            return Skip(replay.record, "replayed already")
        if isinstance(outcome, Claim):
            delivery.claim = outcome
            delivery.keeper = self._desk.store.keep(outcome, lambda _cause: None)
            return replay
        return Defer(outcome if isinstance(outcome, Busy) else None, "its replay is under way or cannot be claimed")

    def _claim(self, request: ClaimRequest, *, waits: bool) -> Outcome:
        """Claim, with some patience while no quorum can be asked; or, by choice, while somebody else runs the key."""
        outcome = self._desk.store.claim(request)
        began = clock()
        down_since = began if isinstance(outcome, Unavailable) else None
        while self._desk.stopping_at is None:
            if isinstance(outcome, Unavailable):
                down_since = down_since or clock()
                # one thread at a time tries; when it succeeds the others follow at once
                if clock() - down_since >= PATIENCE or not self._probe.acquire(timeout=PATIENCE):
                    break
                try:
                    outcome = self._desk.store.claim(request)
                    if isinstance(outcome, Unavailable):
                        time.sleep(PROBE_PAUSE)
                finally:
                    self._probe.release()
            elif isinstance(outcome, Busy) and waits and clock() - began < _LONGEST_WAIT:
                down_since = None
                time.sleep(min(_WAIT_PAUSE, outcome.left))
                outcome = self._desk.store.claim(request)
            else:
                break
        return outcome

    def _run(self, message: MessageProxy, delivery: Delivery, claim: Claim) -> None:
        """Let the body run under a claim that is kept alive."""
        delivery.claim = claim
        interrupter = Interrupter() if delivery.rules and delivery.rules.policy.on_lost == "interrupt" else None

        def on_lost(cause: str) -> None:
            if delivery.finished_at is None:
                self._desk.tell(events.LeaseLost, message, delivery, cause)
                if interrupter is not None:
                    interrupter.fire()

        def runner(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with interrupter or contextlib.nullcontext():
                result = function(*args, **kwargs)
            return settled_result(self._desk, message, delivery, claim, result)

        on_renewed = functools.partial(self._desk.tell, events.Renewed, message, delivery)
        delivery.keeper = self._desk.store.keep(claim, on_lost, on_renewed)
        message.options.pop(DEFERRALS, None)  # a retry of this run counts anew
        expect_body(message.actor_name, runner)
        enter_run(Run(delivery.key or "", claim, self._desk.store))

    def _refuse(self, broker: Broker, message: MessageProxy, delivery: Delivery, refusal: Refuse) -> NoReturn:
        """Send a message to the dead letters without running it."""
        if refusal.claim is not None:
            self._desk.store.abandon(refusal.claim, State.FAILED, str(refusal.error))
        if has_stored_result(broker, message):  # of an earlier delivery; it must not become this one's failure
            mute_results(message)
        self._desk.tell(events.DeadLettered, message, delivery, refusal.reason or str(refusal.error))
        message.fail()
        raise refusal.error

    def _defer(
        self, broker: Broker, message: MessageProxy, delivery: Delivery, busy: Busy | None, detail: str
    ) -> NoReturn:
        """Put a delayed copy into the queue, then skip this delivery; no retry is spent."""
        copy = deferred_copy(message, busy)
        mute_results(message)  # behind the copy: it is only this delivery that has no result
        self._desk.tell(events.Deferred, message, delivery, "busy" if busy else "unavailable", copy.delay_ms, detail)
        try:
            broker.enqueue(copy.message, delay=copy.delay_ms)
        except Exception as error:  # noqa: BLE001 - of whatever broker; the acknowledgement waits for it
            _logger.warning("the broker did not take the copy of message %s: %r", message.message_id, error)
            delivery.postponed = copy
        raise (ClaimBusyError if busy else StoreUnavailableError)(f"deferred by {copy.delay_ms} ms: {detail}")
