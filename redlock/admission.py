"""Who may vote: a pure decision over the votes of one round.

A node that lost its memory (restart, flush, failover) would grant what another holder still has. The scripts refuse on
such a node, because its marker is missing or names another identity, and say so in their reply. This module decides
what is written into the markers then:

- A node that forgot serves again when every lease that it may have forgotten has ended: since = now, and the script
  counts from there. It gets no rights to vote on the absence of records: it takes them in, and knows none.
- Nodes that are all new, and all there, never held anything: they serve since their server started.
- max_ttl, the length of the wait, belongs to the namespace: the largest value that anybody remembers counts.

Assumed: clocks of nodes do not step, and the namespace's markers are written by nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from redlock.errors import SettingsError
from redlock.events import Admitted
from redlock.plan import Broadcast, Command, Plan
from redlock.quorum import Vote, VoteKind, quorum_size
from redlock.scripts import ADMIT
from redlock.settings import Settings

__all__ = ["Admission", "Marker", "Refusal", "admit", "decide", "vouch"]

FORGOT = ("new", "restarted")
"""Reasons of a refusal after which the marker has to be written anew."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What a node's marker says: ``<identity> <since, ms> <max_ttl, ms> <records|leases> <hash of the node list>``."""

    identity: str
    since_ms: int
    max_ttl_ms: int
    rights: str
    nodes: str

    @classmethod
    def parse(cls, text: str) -> Marker | None:
        """Read a marker; None for an empty one."""
        if not text:
            return None
        identity, since, max_ttl, rights, nodes, *_ = text.split()
        return cls(identity, int(since), int(max_ttl), rights, nodes)


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
        """Read the refusal out of a vote; None where the node voted or did not answer."""
        if vote.kind is not VoteKind.UNKNOWN or not vote.reply:
            return None
        reason, left, seen, identity, now, *_ = vote.reply
        return cls(str(reason), int(left), str(seen), str(identity), int(now))

    def admission(self, reason: str, max_ttl_ms: int, rights: str, since: str) -> Admission:
        """Return what to write on the node, if it still looks the same."""
        return Admission(self.seen, self.identity, self.now_ms, reason, max_ttl_ms, rights, since)


@dataclass(frozen=True, slots=True)
class Admission:
    """What to write into one node's marker."""

    seen: str
    identity: str
    now_ms: int
    reason: str
    max_ttl_ms: int
    rights: str
    since: str

    def command(self, settings: Settings) -> Command:
        """Return the script call; it changes nothing where the node no longer looks as it was seen, or too late."""
        too_late = self.now_ms + round(settings.node_timeout * 2000)
        args = (self.seen, self.identity, too_late, self.max_ttl_ms, self.rights, self.since, settings.nodes_id)
        return Command(ADMIT, (settings.key("marker"),), args)


def decide(votes: Sequence[Vote], settings: Settings) -> list[Admission | None]:
    """Return what to write on each node after a round; None where there is nothing to do.

    A node that forgot is admitted only once the namespace's max_ttl is known: from a node that remembers it; or, where
    a quorum answered and all of it forgot, as the largest of the client's own and what their markers say.

    Raises:
        SettingsError: A longer max_ttl is needed, and not all nodes are there to be told.
    """
    refusals = [Refusal.of(vote) for vote in votes]
    _check_raise(votes, refusals)

    def is_durable(refusal: Refusal) -> bool:
        return settings.durable_nodes and refusal.reason == "restarted"

    reasons = {refusal.reason if refusal else None for refusal in refusals}
    forgot = [refusal for refusal in refusals if refusal and refusal.reason in FORGOT]
    remembers = any(
        refusal.reason not in FORGOT or is_durable(refusal) if refusal else vote.kind is not VoteKind.UNKNOWN
        for vote, refusal in zip(votes, refusals, strict=True)
    )
    is_known = remembers or len(forgot) >= quorum_size(len(votes))
    # Only nodes that are all there and have all forgotten can know that no record is missed by starting anew.
    rights = "records" if reasons <= set(FORGOT) else "leases"
    since = "boot" if reasons == {"new"} else "now"
    max_ttl_ms = _largest_max_ttl(votes, refusals, settings)
    result: list[Admission | None] = []
    for refusal in refusals:
        marker = Marker.parse(refusal.seen) if refusal else None
        if refusal and marker and (refusal.reason == "max_ttl" or is_durable(refusal)):
            result.append(refusal.admission(refusal.reason, max_ttl_ms, marker.rights, "keep"))
        elif refusal and refusal.reason in FORGOT and is_known:
            result.append(refusal.admission(refusal.reason, max_ttl_ms, rights, since))
        else:
            result.append(None)
    return result


def _check_raise(votes: Sequence[Vote], refusals: Sequence[Refusal | None]) -> None:
    """Make sure that all nodes can be told of a longer max_ttl before the first longer lease.

    A node that is away would remember the shorter one and, after a restart, vote too early.
    """
    if not any(refusal and refusal.reason == "max_ttl" for refusal in refusals):
        return
    silent = [vote.node for vote, why in zip(votes, refusals, strict=True) if vote.kind is VoteKind.UNKNOWN and not why]
    if silent:
        raise SettingsError(f"max_ttl can only be raised while all nodes answer; missing: {', '.join(silent)}")


def _largest_max_ttl(votes: Sequence[Vote], refusals: Sequence[Refusal | None], settings: Settings) -> int:
    """Return the longest max_ttl that this client, a marker or an admitted node (last field of its reply) knows."""
    markers = [Marker.parse(refusal.seen) for refusal in refusals if refusal]
    admitted = [int(vote.reply[-1]) for vote in votes if vote.kind is not VoteKind.UNKNOWN and vote.reply]
    return max([settings.max_ttl_ms, *admitted, *(marker.max_ttl_ms for marker in markers if marker)])


def admit(votes: Sequence[Vote], settings: Settings) -> Plan[list[Admitted]]:
    """Write the markers that a round of votes asked for, and return what was written.

    Raises:
        SettingsError: A longer max_ttl could not be written on all nodes that need it.
    """
    return (yield from _write(decide(votes, settings), settings))


def vouch(markers: Sequence[Vote], settings: Settings) -> Plan[list[Admitted]]:
    """Let nodes serve at once, on somebody's word that they have forgotten nothing.

    Args:
        markers: What the marker script answered, node by node.
        settings: Of the namespace.
    """
    known = [Marker.parse(str(vote.reply[0])) for vote in markers]
    max_ttl_ms = max([settings.max_ttl_ms, *(marker.max_ttl_ms for marker in known if marker)])
    words = [
        Admission(str(vote.reply[0]), str(vote.reply[1]), int(vote.reply[2]), "vouched", max_ttl_ms, "records", "ever")
        for vote in markers
    ]
    return (yield from _write(words, settings))


def _write(decisions: Sequence[Admission | None], settings: Settings) -> Plan[list[Admitted]]:
    if not any(decisions):
        return []
    commands = tuple(decision.command(settings) if decision else None for decision in decisions)
    answers = yield Broadcast(commands, settings.node_timeout)
    written = []
    for answer, decision in zip(answers, decisions, strict=True):
        if decision and answer.kind is VoteKind.GRANTED:
            wait_ms = _wait_ms(int(answer.reply[1]), decision, settings)
            written.append(Admitted(answer.node, decision.reason, decision.rights, wait_ms))
        elif decision and decision.reason == "max_ttl" and answer.kind is VoteKind.UNKNOWN:
            raise SettingsError(f"max_ttl could not be raised on {answer.node}: {answer.cause}")
    return written


def _wait_ms(age_ms: int, admission: Admission, settings: Settings) -> int:
    """Return how long a node still waits before it votes; the same sum as in the script."""
    return max(0, math.ceil(admission.max_ttl_ms * float(settings.guard)) + 10 - age_ms)
