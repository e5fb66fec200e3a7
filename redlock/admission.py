"""Who may vote: a pure decision over the votes of one round.

A node that lost its memory (restart, flush, failover) would grant what another holder still has. The scripts refuse on
such a node, because its marker is missing or names another identity, and say so in their reply. This module decides
what is written into the markers then:

- A node that forgot serves again when every lease that it may have forgotten has ended: since = now, and the script
  counts from there. It gets no rights to vote on the absence of records: it takes them in, and knows none.
- Nodes that are all new, and all there, never held anything: they serve since their server started.
- Nodes that have all forgotten, and are all there, know of no record that one of them could miss. They are first all
  marked "fresh", and only then given the right to speak for the records: if that breaks off, a node with the right
  proves that every fresh one was there when nobody knew anything, so whoever comes next can finish it.
- max_ttl, the length of the wait, belongs to the namespace: the largest value that anybody remembers counts.

Assumed: clocks of nodes do not step, and the namespace's markers are written by nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from redlock.errors import QuorumUnreachableError, SettingsError
from redlock.events import Admitted
from redlock.marker import Admission, Longest, Marker, Refusal
from redlock.plan import Broadcast, Command, Plan
from redlock.quorum import Vote, VoteKind, quorum_size
from redlock.scripts import MARKER
from redlock.settings import Settings

__all__ = ["admit", "asks_for_raise", "bootstrap", "decide", "raise_max_ttl", "vouch"]

FORGOT = ("new", "restarted")
"""Reasons of a refusal after which the marker has to be written anew."""


def decide(votes: Sequence[Vote], settings: Settings) -> list[Admission | None]:
    """Return what to write on each node that forgot, after a round; None where there is nothing to do.

    A node that forgot is admitted only once the namespace's max_ttl is known: from a node that remembers it; or, where
    a quorum answered and all of it forgot, as the largest of the client's own and what their markers say. So while a
    namespace is used for the first time, or a majority has forgotten, all processes should have the same max_ttl.
    """
    refusals = [Refusal.of(vote) for vote in votes]
    longest = [Longest.of(vote) for vote in votes]
    kept = [_kept(refusal, settings) for refusal in refusals]
    forgot = [
        bool(refusal and refusal.reason in FORGOT and not keeps) for refusal, keeps in zip(refusals, kept, strict=True)
    ]
    remembered = [known for known, lost in zip(longest, forgot, strict=True) if known and not lost]
    if not remembered and sum(forgot) < quorum_size(len(votes)):
        return kept
    # Only nodes that are all there and have all forgotten can know that no record is missed by starting anew.
    rights = "fresh" if all(forgot) else "leases"
    since = "boot" if all(refusal and refusal.reason == "new" for refusal in refusals) else "now"
    own = Longest(settings.max_ttl_ms, settings.max_ttl_ms)
    announced_ms = max(known.announced_ms for known in (own, *filter(None, longest)))
    granted_ms = max(known.granted_ms for known in remembered) if remembered else announced_ms
    longest_now = Longest(announced_ms, granted_ms)
    return [
        refusal.admission(refusal.reason, longest_now, rights, since) if refusal and lost else keeps
        for refusal, lost, keeps in zip(refusals, forgot, kept, strict=True)
    ]


def _kept(refusal: Refusal | None, settings: Settings) -> Admission | None:
    """Return how a restarted node goes on as if nothing had happened, on the user's word that it kept everything."""
    marker = Marker.parse(refusal.seen) if refusal else None
    if refusal is None or marker is None or refusal.reason != "restarted" or not settings.durable_nodes:
        return None
    longest = Longest(marker.announced_ms, marker.granted_ms)
    return refusal.admission(refusal.reason, longest, marker.rights, "keep")


def admit(votes: Sequence[Vote], settings: Settings) -> Plan[list[Admitted]]:
    """Write the markers that a round of votes asked for, and return what was written."""
    if not any(map(_is_refusal, votes)):  # as nearly always
        return []
    decisions = decide(votes, settings)
    answers = yield from _write(decisions, settings)
    given = yield from _write(_entitlements(decisions, answers), settings)
    return [
        Admitted(answer.node, decision.reason, _rights(gift, decision), _wait_ms(answer, decision, settings))
        for decision, answer, gift in zip(decisions, answers, given, strict=True)
        if decision and answer.kind is VoteKind.GRANTED
    ]


def _is_refusal(vote: Vote) -> bool:
    """Return whether a node said that it may not vote, or that it may not beside its answer."""
    return bool(vote.reply) and (vote.kind is VoteKind.UNKNOWN or isinstance(vote.reply[-1], tuple))


def _entitlements(decisions: Sequence[Admission | None], answers: Sequence[Vote]) -> Sequence[Admission | None]:
    """Return how the nodes get records rights, once all are marked fresh: by us, or by others at the same time."""
    entitlements: list[Admission | None] = []
    for decision, answer in zip(decisions, answers, strict=True):
        text = _marker_after(answer)
        marker = Marker.parse(text)
        if not decision or not marker or marker.identity != decision.identity or marker.rights == "leases":
            return [None] * len(decisions)
        longest = Longest(marker.announced_ms, marker.granted_ms)
        entitlements.append(replace(decision, seen=text, longest=longest, rights="records", since="keep"))
    return entitlements


def _marker_after(answer: Vote) -> str:
    """Return the marker that stands on a node after somebody wrote it; empty if that is not known."""
    return str(answer.reply[0 if answer.kind is VoteKind.GRANTED else 1]) if answer.reply else ""


def _rights(gift: Vote, decision: Admission) -> str:
    marker = Marker.parse(_marker_after(gift))
    return marker.rights if marker else decision.rights


def asks_for_raise(votes: Sequence[Vote]) -> bool:
    """Return whether some node refused because the ttl exceeds the max_ttl by which it grants."""
    return any((refusal := Refusal.of(vote)) and refusal.reason == "max_ttl" for vote in votes)


def raise_max_ttl(votes: Sequence[Vote], settings: Settings) -> Plan[None]:
    """Raise the namespace's max_ttl to the client's: announce it on all nodes, then let them grant by it.

    A node that did not know of it would, after others forgot, admit them too early. So no node grants by the longer
    one before all know of it.

    Raises:
        SettingsError: Not all nodes answer, or one changed meanwhile.
    """
    known = [Longest.of(vote) for vote in votes]
    silent = [vote.node for vote, longest in zip(votes, known, strict=True) if longest is None]
    if silent:
        raise SettingsError(f"max_ttl can only be raised while all nodes vote; missing: {', '.join(silent)}")
    refusals = [Refusal.of(vote) for vote in votes]
    wanted = max([settings.max_ttl_ms, *(longest.announced_ms for longest in known if longest)])
    # A node that votes needs no telling of what it announced already; and that is enough for the lease in question.
    told_before = [longest.announced_ms for longest, why in zip(known, refusals, strict=True) if longest and not why]
    wanted = min([wanted, *told_before])
    pairs = list(zip(refusals, known, strict=True))
    announce = [_raised(refusal, longest, wanted, grants=False) for refusal, longest in pairs]
    answers = yield from _write(announce, settings)
    grant: list[Admission | None] = []
    for (refusal, longest), told, answer in zip(pairs, announce, answers, strict=True):
        if told and answer.kind is not VoteKind.GRANTED:
            raise SettingsError(
                f"max_ttl could not be raised on {answer.node}: {answer.cause or 'it changed meanwhile'}"
            )
        seen = replace(refusal, seen=str(answer.reply[0])) if refusal and told else refusal
        grant.append(_raised(seen, longest, wanted, grants=True))
    yield from _write(grant, settings)


def _raised(refusal: Refusal | None, longest: Longest | None, wanted: int, *, grants: bool) -> Admission | None:
    marker = Marker.parse(refusal.seen) if refusal and refusal.reason in ("max_ttl", "waiting") else None
    if refusal is None or marker is None or longest is None:
        return None
    if not grants and longest.announced_ms >= wanted:
        return None
    granted_ms = wanted if grants else longest.granted_ms
    longest = Longest(max(wanted, longest.announced_ms), granted_ms)
    return refusal.admission("max_ttl", longest, marker.rights, "keep")


def vouch(markers: Sequence[Vote], settings: Settings) -> Plan[list[Admitted]]:
    """Let nodes serve at once, on somebody's word that they have forgotten nothing; return what was written.

    Args:
        markers: What the marker script answered, node by node.
        settings: Of the namespace.
    """
    known = [Marker.parse(str(vote.reply[0])) for vote in markers]
    max_ttl_ms = max([settings.max_ttl_ms, *(marker.announced_ms for marker in known if marker)])
    longest = Longest(max_ttl_ms, max_ttl_ms)
    words = [
        Admission(str(vote.reply[0]), str(vote.reply[1]), int(vote.reply[2]), "vouched", longest, "records", "ever")
        for vote in markers
    ]
    answers = yield from _write(words, settings)
    return [Admitted(answer.node, "vouched", "records", 0) for answer in answers if answer.kind is VoteKind.GRANTED]


def bootstrap(nodes: int, settings: Settings, *, force: bool) -> Plan[list[Admitted]]:
    """Let new nodes serve at once, on somebody's word that they have forgotten nothing; return what was written.

    Raises:
        SettingsError: A node votes already or holds keys of the namespace; not with ``force``.
        QuorumUnreachableError: Not all nodes answered, or one changed meanwhile.
    """
    command = Command(MARKER, (settings.key("marker"),), (settings.pattern,))
    markers = yield Broadcast.to_all(command, nodes, settings.node_timeout)
    for vote in markers:
        if vote.kind is VoteKind.UNKNOWN:
            raise QuorumUnreachableError("bootstrap", markers)
        if vote.reply[0] and not force:
            raise SettingsError(f"{vote.node} already votes or once did ({vote.reply[0]}); force to override")
        if vote.reply[3] and not force:
            raise SettingsError(f"{vote.node} already holds keys of the namespace; force to override")
    admitted = yield from vouch(markers, settings)
    if len(admitted) < nodes:
        raise QuorumUnreachableError("bootstrap", markers)
    return admitted


def _write(decisions: Sequence[Admission | None], settings: Settings) -> Plan[Sequence[Vote]]:
    """Write markers, and return the nodes' answers; those that were not asked are unknown."""
    if not any(decisions):
        return [Vote("", VoteKind.UNKNOWN)] * len(decisions)
    commands = tuple(decision.command(settings) if decision else None for decision in decisions)
    return (yield Broadcast(commands, settings.node_timeout))  # type: ignore[no-any-return]


def _wait_ms(answer: Vote, admission: Admission, settings: Settings) -> int:
    """Return how long an admitted node still waits before it votes; the same sum as in the script."""
    age_ms = int(answer.reply[1])
    return max(0, math.ceil(admission.longest.announced_ms * float(settings.guard)) + 10 - age_ms)
