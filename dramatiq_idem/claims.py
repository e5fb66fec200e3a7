"""Claim, renew, complete and abandon as plans; the rules about what answers mean are in judgement.py.

- A claim asks all nodes and waits for all of them, not for a quorum only: every node that holds it is one more that may
  forget. What did not win is taken back everywhere.
- A completion that fewer than W nodes hold is put where it is missing before anybody acts on it (read repair).
- Acknowledgements count within one attempt only: a node may have forgotten between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dramatiq_idem.claim import Claim, ClaimRequest, Outcome, Recorded
from dramatiq_idem.judgement import (
    BEING_FORGOTTEN,
    Completed,
    Granted,
    Judgement,
    Outdated,
    Unavailable,
    agreed,
    granted_by_all,
    is_forgetful,
    judge_claim,
)
from dramatiq_idem.record import Quorums, Record, State, about_text
from redlock import (
    ADMISSION,
    Broadcast,
    Clock,
    Command,
    Count,
    Enough,
    Observer,
    Plan,
    Settings,
    Term,
    Verdict,
    Vote,
    VoteKind,
    admit,
    asks_for_raise,
    everybody,
    is_decided,
    load_script,
    notify,
    raise_max_ttl,
    take_back,
    tally,
    trusted,
)

__all__ = ["ClaimProtocol"]

CLAIM = load_script("dramatiq_idem", "record", "claim", head=ADMISSION, grants=(int, str, int, int, int, int, str))
RENEW = load_script("dramatiq_idem", "record", "renew", head=ADMISSION)
COMPLETE = load_script("dramatiq_idem", "complete")
ABANDON = load_script("dramatiq_idem", "record", "abandon")
FENCE = load_script("dramatiq_idem", "record", "fence")
UNDO = load_script("dramatiq_idem", "undo", by_text=True)


_COMPLETION_WORTH = 600.0
"""Seconds for which a completion is kept for a node that cannot be reached; after that it is the repair's."""


class ClaimProtocol:
    """Plans for the records of one namespace.

    Args:
        settings: What all processes of the namespace agree on.
        quorums: How many nodes are needed.
        clock: Where the plans read the time.
        new_token: Returns a fresh owner token.
        observer: Is told of nodes that are admitted.
        on_forgetful: Called when a node was met that cannot speak for the records; must be quick.
    """

    def __init__(
        self,
        settings: Settings,
        quorums: Quorums,
        clock: Clock,
        new_token: Callable[[], str],
        observer: Observer,
        on_forgetful: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._guard, self._marker = settings.guard, settings.key("marker")
        self._quorums, self._answers = quorums, quorums.answers
        self._clock = clock
        self._new_token = new_token
        self._observer = observer
        self._on_forgetful = on_forgetful

    def claim(self, request: ClaimRequest) -> Plan[Outcome]:
        """Claim a key: with one attempt; with a second where the first let nodes serve or met a newer generation."""
        outcome, serves_now = yield from self._attempt(request, 0)
        if isinstance(outcome, Outdated):
            outcome, _ = yield from self._attempt(request, outcome.generation)
        elif serves_now and isinstance(outcome, Unavailable):
            outcome, _ = yield from self._attempt(request, 0)
        if isinstance(outcome, Outdated):
            return Unavailable(BEING_FORGOTTEN)
        if isinstance(outcome, Completed) and not outcome.is_agreed:
            recorded = yield from self._record(request, outcome.record)
            if recorded and not recorded.is_forgotten:
                return Completed(recorded.record, is_agreed=True)
            return Unavailable({"records": "a completion on too few nodes"})
        return outcome

    def _attempt(self, request: ClaimRequest, floor: int) -> Plan[tuple[Outcome | Outdated, bool]]:
        token = self._new_token()
        undo = self._undo_command(request, token)
        votes: Sequence[Vote] | None = None
        started = self._clock()
        until = started + trusted(request.lease_ms, self._settings)
        try:
            votes = yield self._to_all(self._claim_command(request, token, floor, undo), everybody, self._is_answered)
            outcome, serves_now = yield from self._judge(votes, floor)
        except BaseException:
            yield take_back(undo, votes, self._quorums.nodes, self._settings.node_timeout)
            raise
        if isinstance(outcome, Granted) and self._clock() < until:
            term = Term(request.name, request.lease_ms / 1000, started, until, self._clock)
            about = request.fingerprint, request.message_id
            record = Record(State.RUNNING, outcome.generation, max(outcome.fences), token, outcome.takeovers, 0, *about)
            return Claim(request, record, term, outcome.fences, outcome.is_contested), serves_now
        if any(vote.kind is not VoteKind.REFUSED for vote in votes):
            yield take_back(undo, votes, self._quorums.nodes, self._settings.node_timeout)
        if isinstance(outcome, Granted):
            return Unavailable({"quorum": "answered too late"}), serves_now
        return outcome, serves_now

    def _judge(self, votes: Sequence[Vote], floor: int) -> Plan[tuple[Judgement, bool]]:
        """Return what the answers mean, and whether more nodes serve now: those that forgot are told what to do."""
        if granted := granted_by_all(votes):  # as nearly always
            return granted, False
        admitted = yield from admit(votes, self._settings)
        outcome = judge_claim(votes, self._quorums, floor)
        is_raised = isinstance(outcome, Unavailable) and asks_for_raise(votes)
        if is_raised:
            yield from raise_max_ttl(votes, self._settings)
        for event in admitted:
            notify(self._observer, event)
        if any(map(is_forgetful, votes)):
            self._on_forgetful()
        return outcome, is_raised or any(event.wait_ms == 0 for event in admitted)

    def renew(self, claim: Claim) -> Plan[bool]:
        """Lengthen a claim's lease from now; return whether a quorum did so while it was valid."""
        started = self._clock()
        request, term = claim.request, claim.term
        if term.is_lost:
            return False
        command = Command(RENEW, (self._key(request),), (claim.record.token, request.lease_ms, request.retention_ms))
        timeout = min(self._settings.node_timeout, term.remaining())
        votes = yield Broadcast.to_all(command, self._quorums.nodes, timeout, is_decided)
        verdict = tally(votes)
        until = started + trusted(request.lease_ms, self._settings)
        if verdict is Verdict.GRANTED and self._clock() < min(term.valid_until, until):
            term.extended(started, until)
            return True
        if verdict is Verdict.HELD:
            term.lose("a quorum of nodes no longer has our claim")
        term.postponed()
        return False

    def complete(self, claim: Claim, tail: str) -> Plan[Recorded | None]:
        """Record a completion with its result as JSON (or nothing); None if fewer than W nodes confirmed it."""
        return (yield from self._record(claim.request, claim.record.completed(tail)))

    def _record(self, request: ClaimRequest, record: Record) -> Plan[Recorded | None]:
        args = (record.text(), record.generation, request.retention_ms)
        command = Command(COMPLETE, (self._key(request),), args, worth=_COMPLETION_WORTH)
        votes = yield self._to_all(command, self._is_recorded)
        if self._is_confirmed(Count.of(votes)):
            return Recorded(record)
        if any(vote.kind is VoteKind.REFUSED and vote.reply[0] == "gone" for vote in votes):
            return Recorded(record, is_forgotten=True)
        found = agreed(_completions(votes, record), self._quorums)
        return Recorded(found) if found else None

    def _is_confirmed(self, count: Count) -> bool:
        """Return whether W nodes hold the very record that was sent."""
        return count.granted >= self._quorums.write

    def _is_recorded(self, count: Count) -> bool:
        return not count.missing or self._is_confirmed(count)

    def _is_answered(self, count: Count) -> bool:
        return count.granted + count.refused >= self._answers

    def fence(self, claim: Claim) -> Plan[int | None]:
        """Return the fencing token of a claim; None if it is no longer certain to be ours.

        It is the largest counter among the grants; where no majority returned just that, the others are raised to it.
        """
        largest = max(claim.fences)
        if claim.fences.count(largest) >= self._quorums.lease:
            return largest
        votes = yield self._to_all(
            Command(FENCE, (self._key(claim.request),), (claim.record.token, largest)), is_decided
        )
        return largest if tally(votes) is Verdict.GRANTED else None

    def abandon(self, claim: Claim, state: State, reason: str = "") -> Plan[bool]:
        """Give a claim up, as free or failed; return whether a quorum still had it."""
        args = (claim.record.token, state.value, claim.request.retention_ms, reason)
        command = Command(ABANDON, (self._key(claim.request),), args, worth=self._settings.max_ttl)
        votes = yield self._to_all(command, is_decided)
        return tally(votes) is Verdict.GRANTED

    def _claim_command(self, request: ClaimRequest, token: str, floor: int, undo: Command) -> Command:
        keys = (self._key(request), self._marker)
        about = about_text(request.fingerprint, request.message_id)
        args = (token, request.lease_ms, self._guard, request.retention_ms, about, floor)
        return Command(CLAIM, keys, (*args, "failed") if request.replays_failures else args, undo)

    def _undo_command(self, request: ClaimRequest, token: str) -> Command:
        return Command(UNDO, (self._key(request),), (token,), worth=self._settings.max_ttl)

    def _key(self, request: ClaimRequest) -> str:
        return self._settings.key("record", request.name)

    def _to_all(self, command: Command, enough: Enough, linger: Enough | None = None) -> Broadcast:
        return Broadcast.to_all(command, self._quorums.nodes, self._settings.node_timeout, enough, linger)


def _completions(votes: list[Vote], ours: Record) -> list[Record]:
    """Return the completions that stand on the nodes that answered: ours where it was taken."""
    texts = [vote.reply[1] for vote in votes if vote.kind is VoteKind.REFUSED and vote.reply[0] == "done"]
    return [Record.parse(text) for text in texts] + [ours for vote in votes if vote.kind is VoteKind.GRANTED]
