"""What stands in a node's marker, what a node says that may not vote, and what is written then."""

from __future__ import annotations

from dataclasses import dataclass

from redlock.plan import Command
from redlock.quorum import Vote, VoteKind
from redlock.scripts import ADMIT
from redlock.settings import Settings

__all__ = ["Admission", "Longest", "Marker", "Refusal"]


@dataclass(frozen=True, slots=True)
class Marker:
    """What a node's marker says; ``lua/admission.lua`` has its layout.

    Args:
        identity: Replication id under which it was written.
        since_ms: Since when the node votes, or waits to, by its own clock.
        announced_ms: max_ttl, as far as the wait after forgetting is concerned.
        granted_ms: max_ttl, as far as leases are granted; never more than what was announced on all nodes.
        rights: "records" if the node may speak for the absence of records; "fresh" if it will once all others are
            fresh, too; else "leases".
        nodes: Hash of the node list.
    """

    identity: str
    since_ms: int
    announced_ms: int
    granted_ms: int
    rights: str
    nodes: str

    @classmethod
    def parse(cls, text: str) -> Marker | None:
        """Read a marker; None for an empty one, or a foreign value."""
        try:
            identity, since, announced, granted, rights, nodes, *_ = text.split()
            return cls(identity, int(since), int(announced), int(granted), rights, nodes)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node may not vote, as its script said it; and what it looked like then."""

    reason: str
    left_ms: int
    seen: str
    identity: str
    now_ms: int

    @classmethod
    def of(cls, vote: Vote) -> Refusal | None:
        """Read the refusal out of a vote; None where the node voted or did not answer.

        A node that may not vote can still have something to say (that a key is done): then its refusal comes last.
        """
        fields = vote.reply
        if vote.kind is not VoteKind.UNKNOWN:
            fields = fields[-1] if fields and isinstance(fields[-1], tuple) else ()
        if not fields:
            return None
        reason, left, seen, identity, now, *_ = fields
        return cls(str(reason), int(left), str(seen), str(identity), int(now))

    def admission(self, reason: str, longest: Longest, rights: str, since: str) -> Admission:
        """Return what to write on the node, if it still looks the same."""
        return Admission(self.seen, self.identity, self.now_ms, reason, longest, rights, since)


@dataclass(frozen=True, slots=True)
class Longest:
    """max_ttl in milliseconds: as announced to the nodes, and as granted by them."""

    announced_ms: int
    granted_ms: int

    @classmethod
    def of(cls, vote: Vote) -> Longest | None:
        """Read it from the last field of an admitted node's reply, or from the marker in a refusal."""
        if refusal := Refusal.of(vote):
            marker = Marker.parse(refusal.seen)
            return cls(marker.announced_ms, marker.granted_ms) if marker else None
        announced, separator, granted = str(vote.reply[-1] if vote.reply else "").partition("/")
        return cls(int(announced), int(granted)) if separator else None


@dataclass(frozen=True, slots=True)
class Admission:
    """What to write into one node's marker."""

    seen: str
    identity: str
    now_ms: int
    reason: str
    longest: Longest
    rights: str
    since: str

    def command(self, settings: Settings) -> Command:
        """Return the script call; it changes nothing where the node no longer looks as it was seen, or too late."""
        too_late = self.now_ms + round(settings.node_timeout * 2000)
        longest = (self.longest.announced_ms, self.longest.granted_ms)
        args = (self.seen, self.identity, too_late, *longest, self.rights, self.since, settings.nodes_id)
        return Command(ADMIT, (settings.key("marker"),), args)
