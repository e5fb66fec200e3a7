"""The lock protocol: acquire, extend, release as plans. No IO, no clock, no random source of its own.

A resource is free, or held by one token. On each node the lock is one key with the token and a ttl; a lease is what a
majority of the configured nodes granted, for as long as the slowest of clocks allows:

    validity = ttl - elapsed - (ttl x drift + 2 ms),  elapsed since before the first byte was sent

- Only the holder's token may lengthen or delete the key. Every attempt has a token of its own, so nothing that arrives
  late can be taken for a later attempt's.
- An attempt that did not win takes back what it may have written, on all nodes that did not refuse: silence is not no.
  Such an undo may come late, even where other nodes won the attempt: it leaves a key that an extension counts on.
- Nodes may forget (admission.py), be slow, be down; a minority of them changes nothing.
- Extend never revives: a reply that comes after validity ended counts for nothing. While the lease is valid, a node
  that lost the key gets it back afterwards, and counts from the next round on.
- Assumed: clocks run at rates within drift/2 of true time and do not step; nodes do not evict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from redlock import admission
from redlock.commands import LockCommands
from redlock.errors import LockHeldError, QuorumUnreachableError, SettingsError
from redlock.events import Observer, notify
from redlock.fencing import clock_spread
from redlock.lease import Grant, Term
from redlock.plan import Broadcast, Clock, Command, Enough, Plan, Sleep, everybody, take_back
from redlock.quorum import Verdict, Vote, VoteKind, is_decided, quorum_size, retry_after, tally, validity
from redlock.scripts import PING
from redlock.settings import Settings

__all__ = ["LockProtocol", "check_nodes", "trusted"]

_BUDGET = 0.4
"""Largest share of a lease's ttl that a round may wait for a node: most of it must be left to be used."""


class LockProtocol:
    """Plans for the locks of one namespace.

    Args:
        settings: What all processes of the namespace agree on.
        size: Number of configured nodes.
        clock: Where the plans read the time.
        new_token: Returns a fresh owner token, random and of at least 128 bits.
        observer: Is told of nodes that are admitted.
    """

    def __init__(
        self, settings: Settings, size: int, clock: Clock, new_token: Callable[[], str], observer: Observer
    ) -> None:
        self._settings = settings
        self._commands = LockCommands(settings)
        self._size = size
        self._clock = self.clock = clock
        self._new_token = new_token
        self._observer = observer

    def acquire(self, resource: str, ttl_ms: int, wait: float, pauses: Iterator[float]) -> Plan[Grant]:
        """Try until a quorum grants the lease or ``wait`` seconds are over, with a pause after each failure.

        Raises:
            LockHeldError: A quorum refused the last attempt.
            QuorumUnreachableError: Too few nodes voted in the last attempt.
            SettingsError: The ttl exceeds the namespace's max_ttl, and not all nodes are there to raise it.
        """
        give_up = self._clock() + wait
        tried_again = False
        while True:
            outcome, try_again = yield from self._attempt(resource, self._new_token(), ttl_ms)
            if isinstance(outcome, Grant):
                return outcome
            if try_again and not tried_again:
                tried_again = True
                continue
            left = give_up - self._clock()
            if left <= 0 or sum(vote.permanent for vote in outcome) > self._size // 2:
                raise _refusal(resource, outcome)
            yield Sleep(min(left, next(pauses)))

    def _attempt(self, resource: str, token: str, ttl_ms: int) -> Plan[tuple[Grant | Sequence[Vote], bool]]:
        """Ask all nodes once.

        Returns:
            The grant, or the votes after what was written was taken back; and whether another attempt should follow at
            once, because a node was admitted that votes from now on, or max_ttl was raised.
        """
        undo = self._commands.undo(resource, token)
        started = self._clock()
        until = started + trusted(ttl_ms, self._settings)
        votes: Sequence[Vote] | None = None
        try:
            votes = yield self._to_all(self._commands.acquire(resource, token, ttl_ms), is_decided, ttl_ms)
            twice = [vote.node for vote in votes if vote.cause and vote.cause.startswith("TWICE")]
            if twice:
                raise SettingsError(
                    f"{twice[0]} is the same server as another node; a majority must be of independent ones"
                )
            admitted = yield from admission.admit(votes, self._settings)
            for event in admitted:
                notify(self._observer, event)
            verdict = tally(votes)
            is_raised = verdict is Verdict.UNREACHABLE and admission.asks_for_raise(votes)
            if is_raised:
                yield from admission.raise_max_ttl(votes, self._settings)
            fence = None
            if verdict is Verdict.GRANTED and self._clock() < until:
                fence = yield from self._fence(resource, token, [vote.reply[0] for vote in _granted(votes)])
            if verdict is Verdict.GRANTED and self._clock() < until:
                spread = clock_spread(votes) - (self._clock() - started)
                return Grant(resource, token, ttl_ms / 1000, started, until, fence, spread), False
        except BaseException:
            yield take_back(undo, votes, self._size, self._settings.node_timeout)
            raise
        yield take_back(undo, votes, self._size, self._settings.node_timeout)
        return votes, is_raised or any(event.wait_ms == 0 for event in admitted)

    def _fence(self, resource: str, token: str, counters: Sequence[int]) -> Plan[int | None]:
        """Return the fencing token of a grant; None if it could not be confirmed.

        It is the largest counter among the grants. A majority that returned just that is proof enough; else the
        others are raised to it where the lock is still ours, and a majority has to confirm.

        Source: as for a register's write-back (Attiya, Bar-Noy, Dolev 1995); the model check is in the tests.
        """
        if len(counters) < quorum_size(self._size):
            return None  # fewer may all have missed the last token
        largest = max(counters)
        if list(counters).count(largest) >= quorum_size(self._size):
            return largest
        votes = yield self._to_all(self._commands.fence(resource, token, largest), is_decided)
        return largest if tally(votes) is Verdict.GRANTED else None

    def extend(self, term: Term, token: str, fence: int | None = None) -> Plan[bool]:
        """Lengthen a lease by its ttl from now; return whether a quorum did so while it was valid.

        A refusal by a quorum, or the end of validity, loses the lease; anything else may be tried again. Nodes that
        have forgotten the lease get it back afterwards, with its fencing token.
        """
        started = self._clock()
        if term.is_lost:
            return False
        ttl_ms = round(term.ttl * 1000)
        command = self._commands.extend(term.resource, token, ttl_ms)
        timeout = min(self._settings.node_timeout, term.ttl * _BUDGET, term.remaining())
        votes = yield Broadcast.to_all(command, self._size, timeout, is_decided)
        until = started + trusted(ttl_ms, self._settings)
        is_extended = tally(votes) is Verdict.GRANTED and self._clock() < min(term.valid_until, until)
        if is_extended:
            term.extended(started, until)
        if not term.is_lost:
            yield from self._heal(term, token, fence, votes)
        if is_extended:
            return True
        if sum(bool(vote.reply) and vote.reply[0] == "held" for vote in votes) > self._size // 2:
            term.lose("a quorum of nodes is held by somebody else")
        term.postponed()
        return False

    def _heal(self, term: Term, token: str, fence: int | None, votes: Sequence[Vote]) -> Plan[None]:
        """Put a lease that is valid back where it was forgotten; those nodes count from the next round on.

        A node's own time bounds it: the time in its answer and the validity that is left now, which is later. So a
        command that arrives late brings nothing back.
        """
        left_ms = int((term.valid_until - self._clock()) * 1000 * (1 - self._settings.drift))
        commands: list[Command | None] = []
        for vote in votes:
            is_gone = vote.kind is VoteKind.REFUSED and vote.reply[0] == "gone"
            until_ms = int(vote.reply[1]) + left_ms if is_gone else 0
            commands.append(self._commands.heal(term.resource, token, until_ms, fence or 0) if is_gone else None)
        if any(commands):
            yield Broadcast(tuple(commands), self._settings.node_timeout)

    def attach(self, resource: str, token: str, ttl_ms: int) -> Plan[Grant]:
        """Go on with a lease that another process acquired, by extending it.

        Raises:
            LockHeldError: It has ended or is held under another token.
            SettingsError: The ttl exceeds the max_ttl that the nodes know.
            QuorumUnreachableError: Too few nodes answered; a lease that still stands may have been extended.
        """
        started = self._clock()
        until = started + trusted(ttl_ms, self._settings)
        votes = yield self._to_all(self._commands.extend(resource, token, ttl_ms), is_decided, ttl_ms)
        if any(vote.kind is VoteKind.REFUSED and vote.reply[0] == "max_ttl" for vote in votes):
            raise SettingsError(
                f"ttl {ttl_ms / 1000:g} s exceeds the max_ttl that the nodes know; acquire can raise it"
            )
        if tally(votes) is not Verdict.GRANTED or self._clock() >= until:
            raise _refusal(resource, votes)
        counters = yield self._to_all(self._commands.counter(resource, token), everybody)
        answers = _granted(counters)
        fence = yield from self._fence(resource, token, [vote.reply[0] for vote in answers])
        spread = clock_spread(answers) - (self._clock() - started) if answers else 0.0
        if self._clock() >= until:
            raise _refusal(resource, votes)
        return Grant(resource, token, ttl_ms / 1000, started, until, fence, spread)

    def release(self, resource: str, token: str) -> Plan[bool]:
        """Delete the lock where it is still ours; return whether a quorum still had it."""
        votes = yield self._to_all(self._commands.release(resource, token), is_decided)
        return tally(votes) is Verdict.GRANTED

    def bootstrap(self, *, force: bool) -> Plan[None]:
        """Let new nodes serve at once; see `admission.bootstrap`."""
        for event in (yield from admission.bootstrap(self._size, self._settings, force=force)):
            notify(self._observer, event)

    def _to_all(self, command: Command, enough: Enough, ttl_ms: int | None = None) -> Broadcast:
        """Ask all nodes; with a ttl, for no more of it than a lease can afford to wait."""
        timeout = self._settings.node_timeout
        if ttl_ms is not None:
            timeout = min(timeout, ttl_ms / 1000 * _BUDGET)
        return Broadcast.to_all(command, self._size, timeout, enough)


def check_nodes(nodes: int, timeout: float) -> Plan[None]:
    """Raise SettingsError for nodes that can never work as they are configured; one that is down is no such thing."""
    votes = yield Broadcast.to_all(Command(PING, (), ()), nodes, timeout)
    wrong = [f"{vote.node}: {vote.cause}" for vote in votes if vote.permanent]
    if wrong:
        raise SettingsError(f"nodes that can never work as they are configured: {'; '.join(wrong)}")


def trusted(ttl_ms: int, settings: Settings) -> float:
    """Return for how many seconds from its start a round's grant may be trusted."""
    return validity(ttl_ms / 1000, 0.0, settings.drift)


def _granted(votes: Sequence[Vote]) -> list[Vote]:
    return [vote for vote in votes if vote.kind is VoteKind.GRANTED]


def _refusal(resource: str, votes: Sequence[Vote]) -> LockHeldError | QuorumUnreachableError:
    """Return the error that the votes of a failed attempt mean."""
    if tally(votes) is Verdict.HELD:
        return LockHeldError(resource, votes, retry_after(votes))
    if tally(votes) is Verdict.GRANTED:
        return QuorumUnreachableError(resource, votes, "granted too late to leave any validity")
    return QuorumUnreachableError(resource, votes)
