"""Two runs of one key, where a lease was lost or a run taken over: what the other one recorded counts.

A run that may have been overtaken asks for the other one's completion when its body has returned, before anybody stores
its result; if there is one, that one's result is returned. Its own completion is recorded last, behind the result and
the next step of a pipeline, since a completion says that these are there. So there is a window between the question and
the completion in which the other run may complete first. What that costs depends on the message:

- Two deliveries of one message have one stored result. Whoever completes second is told which completion stands, and
  puts that one's result back: whatever the order of the four steps, the last that is written is the recorded one.
- Two messages have a result each, and each keeps what was stored for it; the event says that they may differ.
"""

from __future__ import annotations

from typing import Any

from dramatiq import Broker
from dramatiq.broker import MessageProxy

from dramatiq_idem import events
from dramatiq_idem.claim import Claim
from dramatiq_idem.delivery import Delivery, decode_result, mute_results, stores_of
from dramatiq_idem.desk import Desk
from dramatiq_idem.record import Record

__all__ = ["put_right", "settled_result", "spare_result"]


def settled_result(desk: Desk, message: MessageProxy, delivery: Delivery, claim: Claim, result: Any) -> Any:
    """Return the body's result; or, where another run may have been under way and was completed, that one's.

    A stored result never changes, and the other one may be stored already.
    """
    other = _other_completion(desk, message, delivery, claim)
    return decode_result(other.tail) if other is not None and other.tail else result


def spare_result(desk: Desk, message: MessageProxy, delivery: Delivery, claim: Claim) -> None:
    """Keep a failure from being stored over the result of another delivery that completed this message."""
    other = _other_completion(desk, message, delivery, claim)
    if other is not None and _is_of(other, message):
        mute_results(message)


def put_right(broker: Broker, message: MessageProxy, standing: Record) -> None:
    """Store the result of the completion that stands, where a second run of the same message has stored its own.

    Args:
        broker: Its result back ends are meant.
        message: Of the second run; its result is stored already.
        standing: The completion of another run that its own one met.
    """
    if standing.tail and _is_of(standing, message):
        for backend, ttl in stores_of(broker, message):
            backend.store_result(message, decode_result(standing.tail), ttl)


def _other_completion(desk: Desk, message: MessageProxy, delivery: Delivery, claim: Claim) -> Record | None:
    """Return another run's completion, where there may be one, and tell of it."""
    if not claim.term.is_lost and not claim.is_contested:
        return None
    other = desk.store.completion(claim.request.name)
    if other is None or other.token == claim.record.token:
        return None
    delivery.is_double = True
    desk.tell(events.DoubleRun, message, delivery, other.message_id or message.message_id)
    return other


def _is_of(record: Record, message: MessageProxy) -> bool:
    return record.message_id in ("", message.message_id)
