"""What is claimed and what comes of it: the values that go between the middleware and a store."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dramatiq_idem.judgement import Busy, Completed, Failed, Unavailable
from dramatiq_idem.record import Record
from redlock import Term

__all__ = ["Claim", "ClaimRequest", "Outcome", "Recorded"]


class ClaimRequest(NamedTuple):
    """What a delivery wants to run.

    Args:
        name: The record's name, unique within the namespace.
        message_id: Of the message; empty if the name says it already.
        fingerprint: Of the arguments; empty if they are not compared.
        lease_ms: Life of the claim unless it is renewed.
        retention_ms: Life of the record.
        replays_failures: Whether a recorded failure for good is to be found instead of being run over.
    """

    name: str
    message_id: str
    fingerprint: str
    lease_ms: int
    retention_ms: int
    replays_failures: bool = False


class Claim(NamedTuple):
    """A key that is ours to run.

    Args:
        request: What was asked for.
        record: As claimed; its token is ours, and its deadline is known to the nodes only.
        term: How long the claim may be trusted.
        fences: The fencing counters of the nodes that granted it.
        is_contested: Whether an earlier run was taken over and may still be under way, and complete.
    """

    request: ClaimRequest
    record: Record
    term: Term
    fences: tuple[int, ...] = ()
    is_contested: bool = False


class Recorded(NamedTuple):
    """A completion that W nodes hold: ours, or the one that an earlier run recorded.

    Args:
        record: The completion.
        is_forgotten: Whether the key was forgotten meanwhile: then nothing is recorded, and nothing need be.
    """

    record: Record
    is_forgotten: bool = False


Outcome: TypeAlias = Claim | Completed | Failed | Busy | Unavailable
