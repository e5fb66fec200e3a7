"""What a node may do for the namespace, read off its marker: pure functions over what it answered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from redlock import Marker, Settings, Vote, VoteKind

__all__ = ["NodeRights"]

_MARGIN_MS = 10
"""What the guard adds to its wait. Source: redlock's ``lua/admission.lua``."""


@dataclass(frozen=True, slots=True)
class NodeRights:
    """One node's marker, and whether it is the node's own.

    Args:
        node: The node's name.
        marker: What it has; None if there is none that can be read.
        text: The marker as it stands there.
        identity: Who the node is now.
        now_ms: Its clock.
        cause: Why it did not answer; None if it did.
    """

    node: str
    marker: Marker | None = None
    text: str = ""
    identity: str = ""
    now_ms: int = 0
    cause: str | None = None

    @classmethod
    def of(cls, vote: Vote) -> NodeRights:
        """Read a node's answer to redlock's script ``marker``."""
        if vote.kind is not VoteKind.GRANTED:
            return cls(vote.node, cause=vote.cause or "refused")
        text, identity, now, *_ = vote.reply
        try:
            marker = Marker.parse(str(text))
        except ValueError:
            marker = None
        return cls(vote.node, marker, str(text), str(identity), int(now))

    @property
    def has_answered(self) -> bool:
        """Whether the rest is known."""
        return self.cause is None

    @property
    def standing(self) -> str:
        """What the node may do, in a word.

        "records", "fresh" and "leases" are what the marker grants; "new" without a marker, "restarted" where it is of
        another identity, "foreign" where it is none; "silent" for a node that did not answer.
        """
        if not self.has_answered:
            return "silent"
        if self.marker is None:
            return "foreign" if self.text else "new"
        return self.marker.rights if self.marker.identity == self.identity else "restarted"

    @property
    def age(self) -> float | None:
        """Seconds since which the node votes, or waits to."""
        return (self.now_ms - self.marker.since_ms) / 1000 if self.marker else None

    def wait_ms(self, settings: Settings) -> int:
        """Return how long the guard still keeps it from voting; the same sum as in the script."""
        if self.marker is None or settings.guard == "0":
            return 0
        wait = math.ceil(self.marker.announced_ms * float(settings.guard)) + _MARGIN_MS
        return max(0, wait - (self.now_ms - self.marker.since_ms))

    def refusal(self, settings: Settings) -> str | None:
        """Return why the node may not vote now; None if it may."""
        if settings.guard == "0" and self.has_answered:
            return None
        if self.standing in ("records", "fresh", "leases"):
            return "waiting" if self.wait_ms(settings) else None
        return self.standing

    def as_dict(self, settings: Settings) -> dict[str, object]:
        """Return it for JSON."""
        marker = self.marker
        return {
            "node": self.node,
            "answered": self.has_answered,
            "cause": self.cause,
            "standing": self.standing,
            "since": marker.since_ms / 1000 if marker else None,
            "waits": self.wait_ms(settings) / 1000,
            "max_ttl": marker.granted_ms / 1000 if marker else None,
            "announced_max_ttl": marker.announced_ms / 1000 if marker else None,
            "node_list": marker.nodes if marker else None,
        }
