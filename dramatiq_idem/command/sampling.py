"""What can be told of the traffic from the records alone, at a bounded price: pure functions over a sample.

Nobody counts claims on the nodes. But a key's fencing counter starts from the node's clock at its first claim, so a
sample shows how many keys were claimed first in the last seconds, and how many of these are completed. Retries and
duplicates of older keys are not in these numbers. A sample that is not the whole is scaled up by its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dramatiq_idem.command.view import Kind, first_claimed, kind_of, read_record
from dramatiq_idem.record import COUNTER_STEP, Record, State

__all__ = ["WINDOW", "Sample", "sample_of"]

WINDOW = 10
"""Seconds, before the current one, over which first claims are counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of one node, as it has them.

    Args:
        node: The node's name.
        read: How many records were read.
        share: Which share of the node's keys was looked at; 1.0 for all.
        kinds: How many there are of each kind, among those read.
        claims: First claims per second, scaled up.
        completions: How many of these keys are completed, per second, scaled up.
        taken_over: Keys that run after an earlier run had ended with its lease, among those read.
        longest: Seconds since the first claim of the key that has been running longest, among those read; None if
            none runs.
        is_exact: Whether that run is the key's first, so that it has been running for so long itself.
    """

    node: str
    read: int
    share: float
    kinds: Mapping[Kind, int]
    claims: float
    completions: float
    taken_over: int
    longest: float | None
    is_exact: bool

    @property
    def is_whole(self) -> bool:
        """Whether all records were read."""
        return self.share >= 1

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "node": self.node,
            "read": self.read,
            "share": self.share,
            "states": {kind.value: self.kinds.get(kind, 0) for kind in Kind if kind is not Kind.NONE},
            "first_claims_per_second": self.claims,
            "completions_of_them_per_second": self.completions,
            "running_after_takeover": self.taken_over,
            "longest_running": self.longest,
            "longest_running_is_exact": self.is_exact,
        }


def sample_of(node: str, texts: Iterable[str], share: float, now_ms: int) -> Sample:
    """Return what a sample of a node's records tells.

    Args:
        node: The node's name.
        texts: What stands in the records.
        share: Which share of all keys was looked at.
        now_ms: The node's clock.
    """
    records = [read_record(text) for text in texts]
    kinds = Counter(kind_of(record, now_ms) if record else Kind.FOREIGN for record in records)
    known = [record for record in records if record]
    recent = [record for record in known if _is_recent(record, now_ms // 1000)]
    done = sum(record.state is State.DONE for record in recent)
    running = [record for record in known if kind_of(record, now_ms) is Kind.RUNNING and first_claimed(record)]
    oldest = min(running, key=lambda record: record.fence, default=None)
    scale = WINDOW * (share or 1.0)
    return Sample(
        node=node,
        read=len(records),
        share=share,
        kinds=kinds,
        claims=len(recent) / scale,
        completions=done / scale,
        taken_over=sum(record.takeovers > 0 for record in running),
        longest=max(0.0, round(now_ms / 1000 - (first_claimed(oldest) or 0), 3)) if oldest else None,
        is_exact=oldest is not None and oldest.fence % COUNTER_STEP == 0,
    )


def _is_recent(record: Record, now: int) -> bool:
    since = first_claimed(record)
    return since is not None and now - WINDOW <= since < now
