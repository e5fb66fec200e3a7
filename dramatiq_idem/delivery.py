"""One delivery of a message, from the claim to the acknowledgement.

The state hangs on the message proxy, which is one per delivery and goes through all hooks; not on the message (its
options travel into retries), nor on its id or the thread (two deliveries of one id may share a process, and a hook that
did not run leaves a thread's state behind).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from dramatiq import Broker, Message
from dramatiq.broker import MessageProxy
from dramatiq.results import ResultBackend, ResultError, ResultMissing, Results

from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.judgement import Busy
from dramatiq_idem.policies import DEFERRALS
from dramatiq_idem.rules import MessageRules
from dramatiq_idem.store import Keeper

__all__ = [
    "Delivery",
    "Postponed",
    "attach",
    "decode_result",
    "deferred_copy",
    "encode_result",
    "has_follow_up",
    "has_stored_result",
    "is_result_wanted",
    "mute_results",
    "of",
    "pop",
    "stores_of",
]

_ATTRIBUTE = "_dramatiq_idem"
_FIRST_BUSY_MS, _LONGEST_BUSY_MS = 250, 30_000
_FIRST_OUTAGE_MS, _LONGEST_OUTAGE_MS = 5_000, 60_000


@dataclass(slots=True)
class Delivery:
    """What we know about one delivery.

    Args:
        rules: What holds for it; None until that is known.
        claim: The claim, once granted.
        unclaimed: What to record the completion under, of a run that was let through without a quorum.
        keeper: Who renews it.
        result: The result as JSON while its completion is not recorded yet.
        finished_at: Clock reading at which the body had returned; None before.
        postponed: A copy that the broker has not taken yet.
        is_again: Whether the key was completed before, and runs again by choice.
        is_double: Whether it was told already that another run of the key was completed.
    """

    rules: MessageRules | None = None
    claim: Claim | None = None
    unclaimed: ClaimRequest | None = None
    keeper: Keeper | None = None
    result: str = ""
    finished_at: float | None = None
    postponed: Postponed | None = None
    is_double: bool = False
    is_again: bool = False

    @property
    def key(self) -> str | None:
        """The idempotency key, if there is one."""
        return self.rules.key if self.rules else None

    @property
    def replays_failures(self) -> bool:
        """Whether a failure for good is remembered, for duplicates; a run again by choice leaves none."""
        return self.rules is not None and self.rules.policy.on_failed == "replay" and not self.is_again

    def end_claim(self) -> None:
        """Stop renewing."""
        if self.keeper is not None:
            self.keeper.end()
            self.keeper = None


@dataclass(frozen=True, slots=True)
class Postponed:
    """A copy of the message to put back into the queue."""

    message: Message[Any]
    delay_ms: int


def attach(message: MessageProxy, delivery: Delivery) -> None:
    """Hang the state on the proxy."""
    setattr(message, _ATTRIBUTE, delivery)


def of(message: MessageProxy) -> Delivery | None:
    """Return the state of this delivery; None if it is not ours."""
    found: Delivery | None = message.__dict__.get(_ATTRIBUTE)
    return found


def pop(message: MessageProxy) -> Delivery | None:
    """Take the state off the proxy."""
    found: Delivery | None = message.__dict__.pop(_ATTRIBUTE, None)
    return found


def deferred_copy(message: MessageProxy, busy: Busy | None) -> Postponed:
    """Return a copy to be delivered later; without a holder, because the nodes cannot be asked.

    The delay doubles with each deferral for the same reason, with a jitter of a quarter; a holder's lease bounds it,
    since after its end the key is free. The copy keeps id, age and retries.
    """
    reason = "busy" if busy else "unavailable"
    before = message.options.get(DEFERRALS)
    count = 0
    if isinstance(before, list) and before[:1] == [reason] and isinstance(before[-1], int):
        count = max(0, before[-1])
    first, longest = (_FIRST_BUSY_MS, _LONGEST_BUSY_MS) if busy else (_FIRST_OUTAGE_MS, _LONGEST_OUTAGE_MS)
    delay = min(longest, first * 2 ** min(count, 20)) * random.uniform(0.75, 1.25)
    if busy:
        delay = min(delay, busy.left * 1000 + random.uniform(5, 50))
    return Postponed(message.copy(options={DEFERRALS: [reason, count + 1]}), max(1, round(delay)))


def mute_results(message: MessageProxy) -> None:
    """Keep the Results middleware from storing None for a delivery that does not run; copies are not affected."""
    message.options["store_results"] = False


def is_result_wanted(broker: Broker, message: MessageProxy) -> bool:
    """Return whether somebody reads the message's result: a store, the next step of a pipeline, or a callback."""
    options = broker.get_actor(message.actor_name).options
    if message.options.get("on_success") or options.get("on_success"):
        return True
    target = message.options.get("pipe_target")
    if target is not None and not (target.get("options", {}).get("pipe_ignore") or options.get("pipe_ignore")):
        return True
    return bool(stores_of(broker, message))


def stores_of(broker: Broker, message: MessageProxy) -> list[tuple[ResultBackend, int]]:
    """Return the back ends that store this message's result, each with the milliseconds for which it does."""
    options = broker.get_actor(message.actor_name).options

    def chosen(name: str, default: Any) -> Any:
        return message.options.get(name, options.get(name, default))

    return [
        (middleware.backend, chosen("result_ttl", middleware.result_ttl))
        for middleware in _results(broker)
        if chosen("store_results", middleware.store_results)
    ]


def has_follow_up(broker: Broker, message: MessageProxy) -> bool:
    """Return whether something goes on after the message: a pipeline, a group, a callback."""
    follow_ups = ("pipe_target", "group_completion_uuid", "on_success")
    actor_options = broker.get_actor(message.actor_name).options
    return any(message.options.get(name) for name in follow_ups) or bool(actor_options.get("on_success"))


def has_stored_result(broker: Broker, message: MessageProxy) -> bool:
    """Return whether a result of this message is stored already, be it a failure."""
    for middleware in _results(broker):
        try:
            middleware.backend.get_result(message)
        except ResultMissing:
            continue
        except ResultError:
            pass
        return True
    return False


def _results(broker: Broker) -> list[Results]:
    return [middleware for middleware in broker.middleware if isinstance(middleware, Results)]


def decode_result(text: str) -> Any:
    """Return a recorded result; None for one that was not kept."""
    return json.loads(text) if text else None


def encode_result(result: object, most_bytes: int) -> str:
    """Return a result as compact JSON; empty if it is too large or is none that JSON can carry."""
    try:
        text = json.dumps(result, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= most_bytes else ""
