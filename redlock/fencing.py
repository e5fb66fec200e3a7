"""When a grant's fencing token can be vouched for."""

from __future__ import annotations

from collections.abc import Sequence

from redlock.errors import FencingUnavailableError
from redlock.lease import Grant
from redlock.quorum import Vote, VoteKind
from redlock.settings import Settings

__all__ = ["clock_spread", "fencing_token"]


def fencing_token(grant: Grant, settings: Settings) -> int:
    """Return a grant's fencing token.

    Raises:
        FencingUnavailableError: It cannot be vouched for.
    """
    if not settings.restart_guard:
        raise FencingUnavailableError("without the restart guard a node that forgot could repeat a token")
    if grant.clock_spread > settings.guard_wait - 1:
        raise FencingUnavailableError(
            f"the nodes' clocks are {grant.clock_spread:.1f} s apart: more than the guard's wait less the second that "
            "counters start from, so a node that forgot could repeat a token"
        )
    if grant.fence is None:
        raise FencingUnavailableError("no majority of nodes confirmed it")
    return grant.fence


def clock_spread(votes: Sequence[Vote]) -> float:
    """Return how far the clocks of the granting nodes are apart at most, in seconds, the round's length included."""
    clocks = [int(vote.reply[1]) / 1000 for vote in votes if vote.kind is VoteKind.GRANTED]
    return max(clocks) - min(clocks)
