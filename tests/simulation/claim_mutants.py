"""Rules of claims and repairs that are taken out, one at a time, and the promise that breaks without each."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutant import Mutant
from tests.simulation.shipping import Edit

__all__ = ["CLAIM_MUTANTS"]

ADMISSION = "redlock/admission.py"
CLAIMS, JUDGEMENT, REPAIR = "dramatiq_idem/claims.py", "dramatiq_idem/judgement.py", "dramatiq_idem/repair.py"


def claim(name: str, promises: str, *edits: Edit, **options: Any) -> Mutant:
    """Return a mutant that schedules of claims have to notice."""
    return Mutant(name, "claim", tuple(promises.split()), edits, options)


CLAIM_MUTANTS = [
    claim(
        "acknowledged with one node less than W",
        "O1 O3",
        Edit(
            CLAIMS,
            "count.granted >= self._quorums.write",
            "count.granted >= self._quorums.write - 1",
        ),
        plot="lonely",
    ),
    claim(
        "done overwritten",
        "O3",
        Edit(
            "dramatiq_idem/lua/complete.lua",
            "if state == 'done' and generation == ARGV[2] then return {0, 'done', value} end",
            "",
        ),
    ),
    claim(
        "no read repair",
        "O1 O3",
        Edit(CLAIMS, "if isinstance(outcome, Completed) and not outcome.is_agreed:", "if False:"),
        plot="lonely",
    ),
    claim(
        "absence without rights",
        "O1",
        Edit(JUDGEMENT, "absent = [answer for answer in current if answer.has_rights]", "absent = current"),
        Edit(
            JUDGEMENT, 'vote.kind is VoteKind.GRANTED and vote.reply[0] == "records"]', "vote.kind is VoteKind.GRANTED]"
        ),
        plot="lonely",
    ),
    claim(
        "claim over a running one",
        "O2 O4",
        Edit("dramatiq_idem/lua/claim.lua", "if record.deadline > now then return", "if false then return"),
    ),
    claim(
        "no guard on claims after forgetting",
        "O2",
        Edit("redlock/lua/admission.lua", "if left > 0 then return {-1, 'waiting', left, marker, me, now} end", ""),
        plot="heal",
    ),
    claim(
        "renewal without a look at the owner",
        "O2 S4",
        Edit("dramatiq_idem/lua/renew.lua", " or record.token ~= ARGV[1] then", " then"),
    ),
    claim(
        "repair from too few",
        "O1",
        Edit(REPAIR, "_quorums.remembering and not accept_loss:", "_quorums.remembering and False:"),
        plot="lonely",
    ),
    claim(
        "nodes without copies taken for complete",
        "O1",
        Edit(REPAIR, "complete = standing.fresh if sources else []", "complete = standing.forgetful"),
        plot="lonely",
    ),
    claim(
        "repair that copies nothing",
        "O1",
        Edit(REPAIR, "            if values and marker:\n", "            if False:\n"),
        plot="lonely",
    ),
    claim(
        "rights given to whoever is there",
        "O1",
        Edit(
            "dramatiq_idem/lua/entitle.lua",
            "if id ~= ARGV[1] or since ~= ARGV[2] or identity() ~= id then",
            "if not id then",
        ),
        Edit(
            "dramatiq_idem/lua/entitle.lua",
            "string.format('%s %s %s %s %s', id,",
            "string.format('%s %s %s %s %s', identity(),",
        ),
        plot="again",
    ),
    claim(
        "a copy that moves records down",
        "O1 O3",
        Edit(
            "dramatiq_idem/lua/copy.lua",
            "rank[theirs.state] > rank[ours.state]",
            "rank[theirs.state] ~= rank[ours.state]",
        ),
        plot="lonely",
    ),
    claim(
        "undo of a claim that a renewal counts on",
        "O2 S4",
        Edit(
            "dramatiq_idem/lua/undo.lua",
            "if token ~= ARGV[1] then return {0} end",
            "if token ~= ARGV[1] and token ~= ARGV[1] .. '+' then return {0} end",
        ),
    ),
    claim(
        "records rights given to one node after the other",
        "L1",
        Edit(REPAIR, 'if not (yield from self._entitle(target, job, "fresh")):', "if False:"),
        profile="liveness",
    ),
    claim(
        "admitted with records rights, not as fresh",
        "L1",
        Edit(
            ADMISSION,
            'rights = "fresh" if all(forgot) else "leases"',
            'rights = "records" if all(forgot) else "leases"',
        ),
        profile="liveness",
    ),
]
