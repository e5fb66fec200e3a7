"""What to do with a delivery, given what the store answered and what the policy says: a pure decision.

| the key is              | default                                                     | by policy             |
| ----------------------- | ----------------------------------------------------------- | --------------------- |
| ours                    | run; dead letter after too many takeovers                   | on_orphan             |
| completed, same message | skip, its result stays                                      | on_done               |
| completed, another one  | the recorded result in place of a run                       | on_done               |
| failed for good         | run                                                         | on_failed             |
| run by somebody         | a delayed copy                                              | on_busy               |
| used for other arguments| dead letter                                                 | fingerprint           |
| not to be told          | a delayed copy                                              | on_unavailable        |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dramatiq_idem.claim import Claim, Outcome
from dramatiq_idem.errors import (
    KeyReusedError,
    MessageRefusedError,
    ResultMissingError,
    TakeoversExhaustedError,
)
from dramatiq_idem.failures import failure_of
from dramatiq_idem.judgement import Busy, Completed, Failed, Unavailable
from dramatiq_idem.record import Record
from dramatiq_idem.rules import MessageRules

__all__ = ["Action", "Defer", "Refuse", "Replay", "RunIt", "RunUnprotected", "Skip", "decide"]


@dataclass(frozen=True, slots=True)
class RunIt:
    """Run the body under the claim."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class RunUnprotected:
    """Run the body although there is no quorum ("unavailable") or it is completed ("done"), as the user chose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Acknowledge without running; whose completion (or, by choice, whose run) stands for it."""

    other: Record
    reason: str


@dataclass(frozen=True, slots=True)
class Replay:
    """Return the recorded result in place of a run."""

    record: Record


@dataclass(frozen=True, slots=True)
class Defer:
    """Put a delayed copy into the queue; `busy` is None where the nodes cannot be asked."""

    busy: Busy | None
    detail: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send the message to the dead letters; a claim that was granted is given up first.

    Args:
        error: What its result becomes.
        claim: What is given up.
        reason: Why, for the log; the error's text if empty.
    """

    error: MessageRefusedError
    claim: Claim | None = None
    reason: str = ""


Action: TypeAlias = RunIt | RunUnprotected | Skip | Replay | Defer | Refuse


def decide(outcome: Outcome, rules: MessageRules, message_id: str, *, is_result_wanted: bool) -> Action:
    """Return what to do with a delivery.

    Args:
        outcome: What the store found.
        rules: What holds for the message.
        message_id: Of the delivered message.
        is_result_wanted: Whether somebody reads the result: it is stored, or goes down a pipeline.
    """
    if isinstance(outcome, Claim):
        return _granted(outcome, rules)
    if isinstance(outcome, Unavailable):
        return _unavailable(outcome, rules)
    other = outcome.record
    if rules.fingerprint and other.fingerprint and rules.fingerprint != other.fingerprint:
        return Refuse(KeyReusedError(f"key {rules.key!r} was used by message {other.message_id} with other arguments"))
    if isinstance(outcome, Failed):
        return _failed(other, rules, message_id)
    if isinstance(outcome, Completed):
        return _completed(other, rules, message_id, is_result_wanted=is_result_wanted)
    return _busy(outcome, rules, other.message_id or message_id)


def _granted(claim: Claim, rules: MessageRules) -> Action:
    takeovers = claim.record.takeovers
    if takeovers and rules.policy.on_orphan == "dead_letter":
        return Refuse(
            TakeoversExhaustedError("orphaned: an earlier run ended with its lease and may have taken effect"), claim
        )
    if takeovers > rules.policy.max_takeovers:
        text = f"{takeovers} runs ended with their lease (max_takeovers is {rules.policy.max_takeovers})"
        return Refuse(TakeoversExhaustedError(text), claim)
    return RunIt(claim)


def _unavailable(outcome: Unavailable, rules: MessageRules) -> Action:
    detail = "; ".join(f"{node}: {cause}" for node, cause in outcome.causes.items())
    if rules.policy.on_unavailable == "run":
        return RunUnprotected("unavailable")
    if rules.policy.on_unavailable == "fail":
        return Refuse(MessageRefusedError(f"no quorum for key {rules.key!r}: {detail}"))
    return Defer(None, detail)


def _completed(record: Record, rules: MessageRules, message_id: str, *, is_result_wanted: bool) -> Action:
    choice = rules.policy.on_done
    if choice == "auto":
        choice = "skip" if rules.is_own_id or record.message_id == message_id else "replay"
    if choice == "run":
        return RunUnprotected("done")
    if choice == "skip":
        return Skip(record, "completed")
    if not record.tail and is_result_wanted:
        return Refuse(ResultMissingError(f"the result of message {record.message_id or message_id} was not kept"))
    return Replay(record)


def _failed(record: Record, rules: MessageRules, message_id: str) -> Action:
    error = failure_of(record.tail)
    text = f"key {rules.key!r} failed for good in message {record.message_id or message_id}, which is given again"
    return Refuse(error, reason=f"{text}: {type(error).__name__}: {error}")


def _busy(outcome: Busy, rules: MessageRules, holder: str) -> Action:
    if rules.policy.on_busy == "skip":
        return Skip(outcome.record, "busy")
    if rules.policy.on_busy == "fail":
        return Refuse(MessageRefusedError(f"key {rules.key!r} is run by message {holder}"))
    return Defer(outcome, f"run by message {holder}")
