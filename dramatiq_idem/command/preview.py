"""What the middleware would do with a message of a key now, found out without claiming it.

Each node's answer to a claim is worked out from what it holds, as ``lua/claim.lua`` does it, and judged by the same
function as a real one. A test compares the two, state by state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dramatiq_idem.command.printing import span
from dramatiq_idem.command.rights import NodeRights
from dramatiq_idem.command.view import Held, Kind
from dramatiq_idem.judgement import (
    BEING_FORGOTTEN,
    Busy,
    Completed,
    Failed,
    Granted,
    Judgement,
    Outdated,
    Unavailable,
    judge_claim,
)
from dramatiq_idem.record import Quorums, Record, State
from redlock import Settings, Vote, VoteKind

__all__ = ["Preview", "preview"]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done.

    Args:
        action: "run", "skip", "busy" or "no quorum".
        detail: Why, and what else it depends on.
    """

    action: str
    detail: str


def preview(helds: Sequence[Held], rights: Sequence[NodeRights], quorums: Quorums, settings: Settings) -> Preview:
    """Return what a claim made now would come to.

    Args:
        helds: What each node has under the key.
        rights: What each node may do.
        quorums: How many nodes are needed.
        settings: Of the namespace.
    """
    outcome = _judge(helds, rights, quorums, settings)
    if isinstance(outcome, Granted):
        if isinstance(_judge(helds, rights, quorums, settings, replays=True), Failed):
            return Preview("run", "it failed for good; where on_failed is replay, that failure is given again instead")
        return _run(outcome.takeovers)
    if isinstance(outcome, Completed):
        return _skip(outcome)
    if isinstance(outcome, Busy):
        holder = f"message {outcome.record.message_id}" if outcome.record.message_id else "another delivery"
        return Preview("busy", f"{holder} runs it, for {span(outcome.left)} unless its lease is renewed")
    causes = outcome.causes if isinstance(outcome, Unavailable) else BEING_FORGOTTEN
    hint = "; the first claim admits new and restarted nodes" if _is_unadmitted(rights) else ""
    return Preview("no quorum", "; ".join(f"{node}: {cause}" for node, cause in causes.items()) + hint)


def _judge(
    helds: Sequence[Held],
    rights: Sequence[NodeRights],
    quorums: Quorums,
    settings: Settings,
    floor: int = 0,
    *,
    replays: bool = False,
) -> Judgement:
    votes = [_answer(held, right, settings, floor, replays=replays) for held, right in zip(helds, rights, strict=True)]
    outcome = judge_claim(votes, quorums, floor)
    if isinstance(outcome, Outdated) and not floor:
        return _judge(helds, rights, quorums, settings, outcome.generation, replays=replays)
    return outcome


def _answer(held: Held, rights: NodeRights, settings: Settings, floor: int, *, replays: bool) -> Vote:
    """Return what a node would answer to a claim."""
    if not rights.has_answered or held.cause is not None:
        return Vote(held.node, VoteKind.UNKNOWN, cause=held.cause or rights.cause)
    if held.kind is Kind.FOREIGN:
        return Vote(held.node, VoteKind.UNKNOWN, cause="what stands under the key is no record")
    record = held.record
    if record and record.generation < floor:
        record = Record(State.FORGOTTEN, floor, record.fence, "", 0, 0, "", "")
    refusal = rights.refusal(settings)
    may_speak = settings.guard == "0" or rights.standing == "records"
    word = "records" if may_speak and not refusal else "leases"
    if record and record.state is State.DONE:
        return Vote(held.node, VoteKind.REFUSED, ("done", word, record.text(), ""))
    if refusal:
        left = rights.wait_ms(settings) if refusal == "waiting" else 0
        generation = record.generation if record else 0
        reply = (refusal, left, rights.text, rights.identity, rights.now_ms, generation)
        return Vote(
            held.node, VoteKind.UNKNOWN, reply, f"may not vote ({refusal})" + (f" for {left / 1000:g} s" * bool(left))
        )
    if record and record.state is State.RUNNING and record.deadline_ms > held.now_ms:
        left = record.deadline_ms - held.now_ms
        return Vote(held.node, VoteKind.REFUSED, ("busy", left, record.text(), word, ""))
    if record and record.state is State.FAILED and record.tail and replays:
        return Vote(held.node, VoteKind.REFUSED, ("failed", word, record.text(), ""))
    takeovers = record.takeovers + 1 if record and record.state is State.RUNNING else 0
    generation = record.generation if record else floor
    return Vote(held.node, VoteKind.GRANTED, (word, generation, 0, takeovers, 0, ""))


def _run(takeovers: int) -> Preview:
    if not takeovers:
        return Preview("run", "nothing keeps it from running")
    where = f"its actor's on_orphan is dead_letter or its max_takeovers below {takeovers}"
    return Preview("run", f"an earlier run ended with its lease (takeover {takeovers}); dead-lettered where {where}")


def _skip(outcome: Completed) -> Preview:
    first = "" if outcome.is_agreed else "once its completion is put on enough nodes; "
    message = outcome.record.message_id
    if not message:
        return Preview("skip", f"{first}it is completed")
    return Preview("skip", f"{first}completed by message {message}; another message gets the recorded result")


def _is_unadmitted(rights: Sequence[NodeRights]) -> bool:
    return any(each.standing in ("new", "restarted") for each in rights)
