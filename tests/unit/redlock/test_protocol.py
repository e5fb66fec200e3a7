"""The lock's plans by hand: votes in, steps out, time only as told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from redlock import (
    Broadcast,
    Grant,
    LockHeldError,
    QuorumUnreachableError,
    Settings,
    SettingsError,
    Sleep,
    Term,
    Vote,
    VoteKind,
    trusted,
)
from redlock.plan import Command, Plan
from tests.tools.plans import (
    ManualClock,
    cut_off,
    granted,
    marked,
    named,
    not_admitted,
    only_command,
    protocol,
    refused,
    result_of,
    scripts_of,
    spelled,
    unknown,
)

TTL_MS = 10_000
NO_PAUSES: Iterator[float] = iter(())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


def taken_back(step: Any, votes: Sequence[Vote] | None = None, token: str = "t1") -> None:  # noqa: S107 - no secret
    """Check that a step deletes the token's key wherever it may be: everywhere but where it was refused."""
    assert isinstance(step, Broadcast)
    expected = [None if vote and vote.kind is VoteKind.REFUSED else "undo" for vote in votes or [None] * 3]
    assert scripts_of(step) in (expected, ["undo"] * len(expected))
    for command in step.commands:
        if command:
            deletes_our_key(command, token)


def deletes_our_key(command: Command, token: str = "t1") -> None:  # noqa: S107 - no secret
    """Check what a command deletes, and that it can be sent where nobody waits for the answer."""
    assert (command.keys, command.args) == (("redlock:lock:r",), (token,))
    assert command.script.by_text, "nobody may be there any more to answer a NOSCRIPT"


def fails(plan: Plan[Any], step_answer: Any = None) -> BaseException:
    """Send a plan its last answer and return what it raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - returned to be looked at
        plan.send(step_answer)
    return caught.value


# -- acquire: the round


def test_acquire_asks_all_nodes_at_once(clock: ManualClock) -> None:
    """Every node gets the same token and ttl, with the undo of just that."""
    plan = protocol(clock, 5).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    step = next(plan)
    command = only_command(step)
    assert len(step.commands) == 5
    assert (command.script.name, command.args[:2]) == ("acquire", ("t1", TTL_MS))
    assert command.keys == ("redlock:lock:r", "redlock:marker", "redlock:fence:r")
    assert command.undo is not None
    assert (command.undo.script.name, command.undo.keys, command.undo.args) == ("undo", ("redlock:lock:r",), ("t1",))
    cut_off(plan)


@pytest.mark.parametrize("letters", ["GGG", "GGR", "GUG", "GGGGG", "RGGUG", "G"])
def test_quorum_of_grants_is_a_lease(clock: ManualClock, letters: str) -> None:
    """L01: one dead node of three changes nothing."""
    plan = protocol(clock, len(letters)).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    clock.advance(0.05)
    grant = result_of(plan, spelled(letters))
    assert isinstance(grant, Grant)
    assert (grant.resource, grant.token, grant.ttl, grant.started) == ("r", "t1", 10.0, 100.0)
    assert grant.valid_until - clock() == pytest.approx(10.0 - 0.05 - 0.102)


def test_elapsed_time_counts_from_before_the_first_byte(clock: ManualClock) -> None:
    """S3: a driver that is slow to send, or stopped in between, stretches no validity."""
    plan = protocol(clock).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    clock.advance(5.0)  # not started yet: this time is nobody's
    next(plan)
    clock.advance(0.4)
    assert result_of(plan, spelled("GGG")).started == 105.0


def test_validity_exactly_zero_is_not_acquired() -> None:
    """L30: with 100 ms asked and 97 ms gone nothing is left; the keys go, and the outcome is no contention."""
    clock = ManualClock()
    plan = protocol(clock).acquire("r", 100, 0.0, NO_PAUSES)
    next(plan)
    clock.now = trusted(100, Settings())
    assert clock.now == pytest.approx(0.097)
    votes = spelled("GGG")
    taken_back(plan.send(votes), votes)
    assert isinstance(fails(plan, spelled("GGG")), QuorumUnreachableError)


def test_a_millisecond_of_validity_is_acquired() -> None:
    """L30: with 96 ms gone one is left."""
    clock = ManualClock()
    plan = protocol(clock).acquire("r", 100, 0.0, NO_PAUSES)
    next(plan)
    clock.now = 0.096
    assert result_of(plan, spelled("GGG")).valid_until - clock() == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("letters", "error"),
    [
        ("RRR", LockHeldError),
        ("GRR", LockHeldError),
        ("URR", LockHeldError),
        ("GRU", QuorumUnreachableError),
        ("GUU", QuorumUnreachableError),
        ("UUU", QuorumUnreachableError),
        ("GGRRU", QuorumUnreachableError),
        ("GRRRU", LockHeldError),
        ("GR", LockHeldError),
        ("GU", QuorumUnreachableError),
    ],
)
def test_failed_attempt_is_taken_back_and_says_why(clock: ManualClock, letters: str, error: type[Exception]) -> None:
    """L03: silence is not no: undo wherever nobody refused; contention and outage are different errors."""
    votes = spelled(letters)
    plan = protocol(clock, len(letters)).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    taken_back(plan.send(votes), votes)
    raised = fails(plan, votes)
    assert type(raised) is error
    assert raised.votes == tuple(votes)


def test_contention_tells_when_a_quorum_is_free(clock: ManualClock) -> None:
    """Of three holders' keys two have to end."""
    plan = protocol(clock).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    votes = named(refused("held", left, "30000/30000") for left in (3_000, 1_000, 2_000))
    plan.send(votes)
    assert fails(plan, votes).retry_after == pytest.approx(2.0)


def test_key_without_an_end_gives_no_time_to_come_back(clock: ManualClock) -> None:
    """A foreign key without ttl has -1 left: that is no time."""
    plan = protocol(clock).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    votes = named(refused("held", -1, "30000/30000") for _ in range(3))
    plan.send(votes)
    retry_after = fails(plan, votes).retry_after
    assert retry_after is None or retry_after >= 0.0


def test_grants_that_came_too_late_are_named_so(clock: ManualClock) -> None:
    """An error that lists only grants would leave the reader alone."""
    plan = protocol(clock).acquire("r", 1_000, 0.0, NO_PAUSES)
    next(plan)
    clock.advance(1.0)
    votes = spelled("GGG")
    plan.send(votes)
    assert any(word in str(fails(plan, votes)) for word in ("late", "slow", "validity", "in time"))


# -- acquire: interruptions


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, TimeoutError, RuntimeError])
def test_interrupted_round_is_taken_back_on_all_nodes(clock: ManualClock, interruption: type[BaseException]) -> None:
    """L21: whatever ends the wait, a node may have granted: undo everywhere, then the interruption goes on."""
    plan = protocol(clock).acquire("r", TTL_MS, 9.0, NO_PAUSES)
    next(plan)
    taken_back(plan.throw(interruption("stop")))
    assert type(fails(plan, spelled("UUU"))) is interruption


def test_second_interruption_ends_the_plan(clock: ManualClock) -> None:
    plan = protocol(clock).acquire("r", TTL_MS, 9.0, NO_PAUSES)
    next(plan)
    plan.throw(KeyboardInterrupt())
    with pytest.raises(SystemExit):
        plan.throw(SystemExit())


def test_interrupted_admission_is_taken_back(clock: ManualClock) -> None:
    """One node granted before another asked to be admitted; the interruption hits then."""
    plan = protocol(clock).acquire("r", TTL_MS, 9.0, NO_PAUSES)
    next(plan)
    votes = named([granted(), not_admitted("new"), unknown()])
    assert "admit" in scripts_of(plan.send(votes))
    taken_back(plan.throw(KeyboardInterrupt()), votes)
    assert isinstance(fails(plan, votes), KeyboardInterrupt)


def test_interrupted_pause_leaves_nothing_to_take_back(clock: ManualClock) -> None:
    plan = protocol(clock).acquire("r", TTL_MS, 9.0, iter([0.1]))
    next(plan)
    plan.send(spelled("RRR"))
    assert isinstance(plan.send(spelled("UUU")), Sleep)
    with pytest.raises(KeyboardInterrupt):
        plan.throw(KeyboardInterrupt())


def test_dropping_a_plan_in_mid_round_is_loud(clock: ManualClock) -> None:
    """A driver that closed the plan would lose the undo; Python says so, since the plan still asks for it."""
    plan = protocol(clock).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    with pytest.raises(RuntimeError, match="GeneratorExit"):
        plan.close()
    cut_off(plan)


# -- acquire: trying again


def attempts(plan: Plan[Any], clock: ManualClock, votes: Sequence[Vote], round_trip: float = 0.0) -> tuple[Any, Any]:
    """Answer every round alike until the plan ends; return the pauses and what it raised."""
    pauses: list[float] = []
    step, answer = next(plan), None
    while True:
        if isinstance(step, Sleep):
            pauses.append(step.seconds)
            clock.advance(step.seconds)
            answer = None
        else:
            clock.advance(round_trip if scripts_of(step)[0] == "acquire" else 0.0)
            answer = votes
        try:
            step = plan.send(answer)
        except Exception as error:  # noqa: BLE001 - returned to be looked at
            return pauses, error


def test_without_wait_there_is_one_attempt_and_no_pause(clock: ManualClock) -> None:
    """L67: no retry means one attempt, and no sleep after it."""
    pauses, error = attempts(protocol(clock).acquire("r", TTL_MS, 0.0, NO_PAUSES), clock, spelled("RRR"))
    assert (pauses, type(error)) == ([], LockHeldError)


def test_pauses_come_from_the_strategy_and_end_with_the_wait(clock: ManualClock) -> None:
    """L67: the last pause is cut to what is left of the wait, and an attempt follows it."""
    plan = protocol(clock).acquire("r", TTL_MS, 1.0, iter([0.25, 0.5, 5.0]))
    pauses, error = attempts(plan, clock, spelled("RRR"))
    assert (pauses, type(error)) == ([0.25, 0.5, 0.25], LockHeldError)


@pytest.mark.parametrize(("letters", "error"), [("UUG", QuorumUnreachableError), ("RRG", LockHeldError)])
def test_wait_is_bounded_whatever_the_nodes_do(clock: ManualClock, letters: str, error: type[Exception]) -> None:
    """L04: with one second to wait, at most one more round trip is spent."""
    plan = protocol(clock).acquire("r", TTL_MS, 1.0, itertools.repeat(0.07))
    _, raised = attempts(plan, clock, spelled(letters), round_trip=0.1)
    assert type(raised) is error
    assert 1.0 <= clock() - 100.0 <= 1.1 + 1e-9


def test_every_attempt_has_a_token_of_its_own_and_the_same_ttl(clock: ManualClock) -> None:
    """L53: what arrives late is not taken for a later attempt's, and blocked rounds do not add up to a longer ttl."""
    plan = protocol(clock).acquire("r", TTL_MS, 10.0, itertools.repeat(1.0))
    step, sent = next(plan), []
    for _ in range(3):
        sent.append(only_command(step).args[:2])
        assert isinstance(plan.send(spelled("RRR")), Broadcast)
        assert plan.send(None) == Sleep(1.0)
        clock.advance(1.0)
        step = plan.send(None)
    cut_off(plan)
    assert sent == [("t1", TTL_MS), ("t2", TTL_MS), ("t3", TTL_MS)]


def test_validity_is_measured_from_the_attempt_that_won(clock: ManualClock) -> None:
    plan = protocol(clock).acquire("r", TTL_MS, 10.0, iter([2.0]))
    next(plan)
    plan.send(spelled("RRR"))
    plan.send(None)
    clock.advance(2.0)
    assert only_command(plan.send(None)).args[0] == "t2"
    clock.advance(0.1)
    grant = result_of(plan, spelled("GGG"))
    assert (grant.started, grant.token) == (102.0, "t2")
    assert grant.valid_until == pytest.approx(102.0 + 9.898)


def test_majority_of_permanent_faults_raises_at_once(clock: ManualClock) -> None:
    """A wrong password does not become right by waiting."""
    votes = named([granted(), unknown("WRONGPASS", permanent=True), unknown("WRONGPASS", permanent=True)])
    plan = protocol(clock).acquire("r", TTL_MS, 60.0, itertools.repeat(0.1))
    pauses, error = attempts(plan, clock, votes)
    assert (pauses, type(error)) == ([], QuorumUnreachableError)
    assert "WRONGPASS" in str(error)


def test_minority_of_permanent_faults_is_waited_out(clock: ManualClock) -> None:
    votes = named([granted(), unknown(), unknown("WRONGPASS", permanent=True)])
    plan = protocol(clock).acquire("r", TTL_MS, 1.0, itertools.repeat(0.5))
    pauses, _ = attempts(plan, clock, votes)
    assert pauses == [0.5, 0.5]


# -- acquire: first use


def admission_of_new_nodes(clock: ManualClock, ages_ms: Sequence[int], events: list[Any]) -> tuple[Plan[Any], Any]:
    """Carry a first acquire on to what follows the admission of three new nodes and the undo."""
    plan = protocol(clock, events=events).acquire("r", TTL_MS, 0.0, NO_PAUSES)
    next(plan)
    step = plan.send(named(not_admitted("new") for _ in range(3)))
    assert scripts_of(step) == ["admit"] * 3
    taken_back(plan.send(named(granted("marker", age) for age in ages_ms)))
    try:
        return plan, plan.send(None)
    except QuorumUnreachableError as error:
        return plan, error


def test_new_nodes_that_serve_at_once_are_asked_again_without_a_pause(clock: ManualClock) -> None:
    """A long-running Redis serves the first call, even without any wait; but only one such round is added."""
    events: list[Any] = []
    plan, step = admission_of_new_nodes(clock, [10**9] * 3, events)
    assert scripts_of(step) == ["acquire"] * 3
    plan.send(named(not_admitted("new") for _ in range(3)))
    plan.send(named(granted("marker", 10**9) for _ in range(3)))
    assert isinstance(fails(plan), QuorumUnreachableError)
    assert {event.wait_ms for event in events} == {0}


def test_new_nodes_that_have_to_wait_say_for_how_long(clock: ManualClock) -> None:
    """L74: no second attempt; the event names the wait: max_ttl and twice the drift, less the node's age."""
    events: list[Any] = []
    _, error = admission_of_new_nodes(clock, [600] * 3, events)
    assert isinstance(error, QuorumUnreachableError)
    assert [event.wait_ms for event in events] == [30_000 + 600 + 10 - 600] * 3


# -- extend


@pytest.fixture
def term(clock: ManualClock) -> Term:
    """A lease of ten seconds, acquired now."""
    return Term("r", 10.0, clock(), clock() + 9.898, clock)


def extension(term: Term, clock: ManualClock, votes: Sequence[Vote], round_trip: float = 0.01) -> bool:
    """Extend with the given votes; what is put back afterwards arrives."""
    return extend_and_heal(term, clock, votes, round_trip)[0]


def extend_and_heal(
    term: Term, clock: ManualClock, votes: Sequence[Vote], round_trip: float = 0.01
) -> tuple[bool, list[str | None]]:
    """Extend with the given votes; return the outcome, and on which nodes the lease was put back."""
    plan = protocol(clock, len(votes)).extend(term, "t1")
    command = only_command(next(plan))
    assert (command.script.name, command.keys[0], command.args[:2]) == ("extend", "redlock:lock:r", ("t1", 10_000))
    clock.advance(round_trip)
    try:
        healed = scripts_of(plan.send(votes))
    except StopIteration as end:
        return bool(end.value), [None] * len(votes)
    return bool(result_of(plan, named(granted(0) for _ in votes))), healed


def gone() -> Vote:
    """Return the answer of a node that has forgotten the lease, with its time in ms."""
    return refused("gone", 7_000_000)


def test_extension_counts_from_its_own_start(clock: ManualClock, term: Term) -> None:
    """L40: validity is that of the new round, elapsed time taken off."""
    clock.advance(9.0)
    assert extension(term, clock, spelled("GGU"))
    assert term.remaining() == pytest.approx(10.0 - 0.01 - 0.102)


def test_extension_that_is_answered_after_the_end_counts_nothing(clock: ManualClock, term: Term) -> None:
    """L39: all nodes say yes, but validity ended while the replies were under way."""
    clock.advance(9.5)
    assert not extension(term, clock, spelled("GGG"), round_trip=0.6)
    assert term.is_lost
    assert term.remaining() == 0.0


def test_extension_that_is_answered_exactly_at_the_end_counts_nothing(clock: ManualClock) -> None:
    """L39: the bound itself is outside."""
    clock.now = 0.0
    term = Term("r", 10.0, 0.0, 8.0, clock)
    assert not extension(term, clock, spelled("GGG"), round_trip=8.0)
    assert term.is_lost


def test_extension_never_revives(clock: ManualClock, term: Term) -> None:
    """L37: once validity is over, nothing is even asked."""
    clock.advance(9.898)
    assert result_of(protocol(clock).extend(term, "t1"), None) is False
    assert term.is_lost


def test_node_that_had_forgotten_gets_the_lease_back(clock: ManualClock, term: Term) -> None:
    """L42: an extension heals; by the node's own clock until the lease ends, so that nothing late brings it back."""
    plan = protocol(clock).extend(term, "t1", 77)
    next(plan)
    clock.advance(0.01)
    step = plan.send(named([granted("extended"), gone(), granted("extended")]))
    assert scripts_of(step) == [None, "heal", None]
    token, until_ms, fence = step.commands[1].args[:3]
    assert (token, fence) == ("t1", 77)
    assert 7_000_000 + 9_000 < until_ms <= 7_000_000 + 1000 * term.remaining()
    assert result_of(plan, spelled("UGU")) is True


def test_node_that_had_forgotten_does_not_count_in_the_same_round(clock: ManualClock, term: Term) -> None:
    """L42: two of three forgot: no extension, but the lease is still valid and is put back, for the next round."""
    extended, healed = extend_and_heal(term, clock, named([granted("extended"), gone(), gone()]))
    assert not extended
    assert not term.is_lost, "the lease keeps the validity that it has"
    assert healed == [None, "heal", "heal"]


def test_lease_that_ended_in_mid_round_is_not_put_back(clock: ManualClock, term: Term) -> None:
    """L37: healing is extending: only while the validity lasts."""
    clock.advance(9.5)
    assert extend_and_heal(term, clock, named([gone()] * 3), round_trip=0.6) == (False, [None] * 3)


def test_extension_without_a_quorum_may_be_tried_again(clock: ManualClock, term: Term) -> None:
    """L45: an outage postpones, it does not lose."""
    clock.advance(5.0)
    assert not extension(term, clock, spelled("GUU"))
    assert not term.is_lost
    assert clock() < term.renew_at < term.valid_until
    assert term.remaining() == pytest.approx(9.898 - 5.01)


def test_lease_that_a_quorum_gave_to_somebody_else_is_lost(clock: ManualClock, term: Term) -> None:
    """L38: a stolen lock is lost at once, not at the end of its validity."""
    assert not extension(term, clock, named([granted("extended"), refused("held", 900), refused("held", 900)]))
    assert term.is_lost
    assert term.cause is not None
    assert "somebody else" in term.cause


def test_extension_has_no_undo(clock: ManualClock, term: Term) -> None:
    """What may have been lengthened is still ours: taking it back would release the lock."""
    assert only_command(next(protocol(clock).extend(term, "t1"))).undo is None


# -- release


@pytest.mark.parametrize(("letters", "ours"), [("GGG", True), ("GGU", True), ("GRR", False), ("GUU", False)])
def test_release_says_whether_a_quorum_was_still_ours(clock: ManualClock, letters: str, ours: bool) -> None:  # noqa: FBT001
    """L55: only our token's key is deleted, on all nodes at once, needing no admission."""
    plan = protocol(clock).release("r", "t1")
    command = only_command(next(plan))
    assert command.script.name == "release"
    deletes_our_key(command)
    assert result_of(plan, spelled(letters)) is ours


# -- bootstrap


def test_bootstrap_lets_new_nodes_serve_at_once(clock: ManualClock) -> None:
    """L74: on somebody's word, with a message that says so."""
    events: list[Any] = []
    plan = protocol(clock, events=events).bootstrap(force=False)
    assert scripts_of(next(plan)) == ["marker"] * 3
    step = plan.send(named(marked() for _ in range(3)))
    assert scripts_of(step) == ["admit"] * 3
    assert only_command(step).args[3:7] == (30_000, 30_000, "records", "ever")
    result_of(plan, named(granted("marker", 10**12) for _ in range(3)))
    assert [(event.reason, event.wait_ms) for event in events] == [("vouched", 0)] * 3


def test_bootstrap_refuses_where_a_node_has_voted(clock: ManualClock) -> None:
    plan = protocol(clock).bootstrap(force=False)
    next(plan)
    error = fails(plan, named([marked(), marked("ab12 5 30000 30000 records 0a1b2c3d"), marked()]))
    assert isinstance(error, SettingsError)
    assert "n2" in str(error)


def test_bootstrap_needs_all_nodes(clock: ManualClock) -> None:
    plan = protocol(clock).bootstrap(force=True)
    next(plan)
    assert isinstance(fails(plan, named([marked(), marked(), unknown()])), QuorumUnreachableError)


def test_forced_bootstrap_keeps_the_longest_max_ttl(clock: ManualClock) -> None:
    plan = protocol(clock).bootstrap(force=True)
    next(plan)
    step = plan.send(named([marked(), marked("ab12 5 60000 30000 records 0a1b2c3d"), marked()]))
    assert [command.args[3] for command in step.commands] == [60_000] * 3


def test_bootstrap_that_met_another_one_is_no_success(clock: ManualClock) -> None:
    """A marker that changed in between was not overwritten, and is not claimed to be."""
    plan = protocol(clock).bootstrap(force=False)
    next(plan)
    plan.send(named(marked() for _ in range(3)))
    answers = named([granted("m", 1), granted("m", 1), refused("changed", "other")])
    assert isinstance(fails(plan, answers), QuorumUnreachableError)
