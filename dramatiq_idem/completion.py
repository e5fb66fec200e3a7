"""After the body: record the completion or give the claim up, and hold the acknowledgement until that is certain.

Our hook after the body comes last: by then results are stored and the next step of a pipeline is queued. Dramatiq
swallows what it raises and acknowledges, so what is not certain by then waits in `before_ack`.
"""

from __future__ import annotations

import logging
import time

from dramatiq import Broker
from dramatiq.broker import MessageProxy
from dramatiq.middleware import Interrupt

from dramatiq_idem import delivery as deliveries
from dramatiq_idem import events
from dramatiq_idem.body import expect_body
from dramatiq_idem.delivery import Delivery, encode_result
from dramatiq_idem.desk import PATIENCE, PROBE_PAUSE, Desk
from dramatiq_idem.doubles import put_right, spare_result
from dramatiq_idem.errors import AcknowledgementHeldError, LeftUnacknowledgedError
from dramatiq_idem.failures import encode_failure
from dramatiq_idem.record import Record, State
from dramatiq_idem.runs import leave_run
from redlock import clock

__all__ = ["Completion"]

_LONGEST_HOLD, _LONGEST_HOLD_STOPPING = 300.0, 10.0
"""Seconds for which an acknowledgement waits for its completion to be recorded: working, and once the worker stops."""

_logger = logging.getLogger("dramatiq_idem")


class Completion:
    """What happens to a delivery after its body.

    Args:
        desk: The store, and who is told.
        max_result_bytes: Largest result, or failure, that is kept.
    """

    def __init__(self, desk: Desk, max_result_bytes: int) -> None:
        self._desk = desk
        self._max_result_bytes = max_result_bytes

    def leave(self, broker: Broker, message: MessageProxy, result: object, exception: BaseException | None) -> None:
        """Record a completion, or give the claim up; the first call for a delivery counts."""
        leave_run()
        expect_body(message.actor_name, None)
        delivery = deliveries.of(message)
        if delivery is None or delivery.finished_at is not None:
            return
        delivery.finished_at = clock()
        if delivery.unclaimed is not None and exception is None and not message.failed:
            claim = self._desk.store.unclaimed(delivery.unclaimed)
            self._desk.store.complete(claim, encode_result(result, self._max_result_bytes))
        if delivery.claim is None:
            return
        if exception is None and not message.failed and not delivery.is_again:
            delivery.result = encode_result(result, self._max_result_bytes)
            try:
                self._record(broker, message, delivery)
            except Interrupt:  # meant for the body, which has returned: what is done must still be recorded
                self._record(broker, message, delivery)
        else:
            self.give_up(message, exception)

    def _record(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> bool:
        """Try once to record the completion; afterwards the claim needs no renewal."""
        claim = delivery.claim
        if claim is None:
            return True
        try:
            recorded = self._desk.store.complete(claim, delivery.result)
        except Exception:
            _logger.exception("recording the completion of message %s failed", message.message_id)
            return False
        if recorded is None:
            return False
        delivery.claim = None
        delivery.end_claim()
        if recorded.is_forgotten:
            self._desk.tell(events.Forgotten, message, delivery)
        elif recorded.record.token == claim.record.token:
            self._desk.tell(events.Completed, message, delivery, clock() - (delivery.finished_at or clock()))
        elif not delivery.is_double:
            self._desk.tell(events.DoubleRun, message, delivery, recorded.record.message_id or message.message_id)
            self._put_right(broker, message, recorded.record)
        return True

    @staticmethod
    def _put_right(broker: Broker, message: MessageProxy, standing: Record) -> None:
        try:
            put_right(broker, message, standing)
        except Exception:
            _logger.exception("the recorded result of message %s could not be put back", message.message_id)

    def give_up(self, message: MessageProxy, exception: BaseException | None = None) -> None:
        """Give the claim up: free for a retry, or failed if the message goes to the dead letters."""
        leave_run()
        delivery = deliveries.of(message)
        if delivery is None or delivery.claim is None:
            return
        claim, delivery.claim = delivery.claim, None
        delivery.end_claim()
        state = State.FAILED if message.failed else State.FREE
        reason = ""
        if state is State.FAILED and exception is not None and delivery.replays_failures:
            reason = encode_failure(exception, self._max_result_bytes)
        self._desk.store.abandon(claim, state, reason)
        self._desk.tell(events.GivenUp, message, delivery, state.value)
        if state is State.FAILED:
            spare_result(self._desk, message, delivery, claim)

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
            self._insist_on_recording(broker, message, delivery, delivery.finished_at)
        deliveries.pop(message)

    def _enqueue_postponed(self, broker: Broker, message: MessageProxy, delivery: Delivery) -> None:
        copy = delivery.postponed
        try:
            if copy is not None:
                broker.enqueue(copy.message, delay=copy.delay_ms)
        except Exception as error:
            text = f"no copy of message {message.message_id} is in the queue yet"
            if self._desk.stopping_at is None:
                raise AcknowledgementHeldError(text) from error
            raise LeftUnacknowledgedError(text) from error
        delivery.postponed = None

    def _insist_on_recording(
        self, broker: Broker, message: MessageProxy, delivery: Delivery, finished_at: float
    ) -> None:
        give_up = clock() + PATIENCE
        while not self._record(broker, message, delivery):
            now = clock()
            stopping = now if self._desk.stopping_at is None else self._desk.stopping_at
            if now - finished_at >= _LONGEST_HOLD or now - stopping >= _LONGEST_HOLD_STOPPING:
                delivery.claim = None
                delivery.end_claim()
                self._desk.tell(events.CompletionUnrecorded, message, delivery, now - finished_at)
                return
            if now >= give_up:
                raise AcknowledgementHeldError(f"the completion of message {message.message_id} is not recorded yet")
            time.sleep(PROBE_PAUSE)
