"""The plans of claims, driven by hand: what is asked of the nodes, and what is made of the answers."""

from __future__ import annotations

from itertools import count

import pytest
from dramatiq.middleware import TimeLimitExceeded

from dramatiq_idem.claim import Claim, ClaimRequest, Recorded
from dramatiq_idem.claims import ClaimProtocol
from dramatiq_idem.judgement import Busy, Completed, Unavailable
from dramatiq_idem.record import Quorums, Record, State
from redlock import Admitted, Broadcast, Count, Settings, Vote, VoteKind, trusted

SETTINGS = Settings("ns", 10.0, 30.0)
REQUEST = ClaimRequest("pay:1", "message-1", "", 3_000, 60_000)
TRUSTED = trusted(REQUEST.lease_ms, SETTINGS)


class Interrupted(BaseException):
    """Stands for whatever hits the asking thread."""


class Clock:
    """A clock that goes when it is told to."""

    now = 1000.0

    def __call__(self):
        return self.now


class Bench:
    """A protocol with a clock, numbered tokens and the events it told."""

    def __init__(self, nodes=3, write=2, settings=SETTINGS):
        self.clock = Clock()
        self.events = []
        tokens = (f"token-{number}" for number in count(1))
        quorums = Quorums(nodes, write)
        self.rules = ClaimProtocol(settings, quorums, self.clock, lambda: next(tokens), self.events.append)
        self.size = nodes

    def granted_claim(self):
        """Return a claim that all nodes granted."""
        plan = self.rules.claim(REQUEST)
        return end_of(plan, answer(plan, [granted()] * self.size))


def granted(rights="records", generation=0, fence=7):
    return VoteKind.GRANTED, (rights, generation, fence, 0, 0, "30000/30000")


def done(owner="other", generation=0, rights="records", tail="42"):
    text = completion(owner, generation, tail).text()
    return VoteKind.REFUSED, ("done", rights, text, "30000/30000")


def completion(owner="other", generation=0, tail="42"):
    return Record(State.DONE, generation, 5, owner, 0, 0, "", "message-0", tail)


def busy(left_ms=700):
    held = Record(State.RUNNING, 0, 5, "other", 0, 99, "", "message-0").text()
    return VoteKind.REFUSED, ("busy", left_ms, held, "records", "30000/30000")


def not_admitted(reason="new", seen=""):
    return VoteKind.UNKNOWN, (reason, 0, seen, "f00", 1_000, 0)


SILENCE = (VoteKind.UNKNOWN, ())
YES = (VoteKind.GRANTED, ())
NO = (VoteKind.REFUSED, ("",))


def votes(answers):
    return [
        Vote(f"n{index}", kind, reply, "silent" if kind is VoteKind.UNKNOWN else None)
        for index, (kind, reply) in enumerate(answers)
    ]


def first(plan):
    """Return what a plan asks for first."""
    return plan.send(None)


def answer(plan, answers):
    """Ask for the first step and answer it; return the next step, or the result in a list."""
    return reply(plan, first(plan), answers)


def reply(plan, step, answers):
    assert isinstance(step, Broadcast)
    try:
        return plan.send(votes(answers))
    except StopIteration as end:
        return [end.value]


def end_of(plan, step):
    """Return a plan's result; it may ask for nothing more."""
    assert isinstance(step, list), step
    return step[0]


def is_undo(step, *, nodes=range(3)):
    """Whether a step takes a claim back on these nodes, and on no other, without waiting."""
    if not isinstance(step, Broadcast) or not step.enough(Count.of([None] * len(step.commands))):
        return False
    asked = {index: command for index, command in enumerate(step.commands) if command}
    return set(asked) == set(nodes) and all(
        (command.script.name, command.keys, command.args) == ("undo", ("ns:record:pay:1",), ("token-1",))
        for command in asked.values()
    )


# -- claim


def test_claim_asks_every_node_and_waits_for_all():
    """Each node that holds the claim is one more that may forget, so a quorum is not enough to go on."""
    plan = Bench().rules.claim(REQUEST)
    step = first(plan)
    assert len(step.commands) == 3
    command = step.commands[0]
    assert {each.script.name for each in step.commands} == {"claim"}
    assert command.keys == ("ns:record:pay:1", "ns:marker")
    assert command.args == ("token-1", 3_000, SETTINGS.guard, 60_000, "- message-1", 0)
    assert (command.undo.script.name, command.undo.args) == ("undo", ("token-1",))
    yes, no = votes([granted(), busy()])
    assert not step.enough(Count.of([yes, yes, None]))
    assert not step.enough(Count.of([no, no, None]))
    assert step.enough(Count.of([yes, yes, yes]))
    assert step.timeout == SETTINGS.node_timeout
    end_of(plan, reply(plan, step, [busy()] * 3))


def test_granted_claim_is_trusted_from_before_the_first_byte():
    """The time that the answers took is taken off the lease."""
    bench = Bench()
    plan = bench.rules.claim(REQUEST)
    step = first(plan)
    bench.clock.now += 1.0
    claim = end_of(plan, reply(plan, step, [granted(), granted(fence=9), SILENCE]))
    assert isinstance(claim, Claim)
    assert claim.record.token == "token-1"
    assert claim.record.fence == 9
    assert claim.term.remaining() == pytest.approx(TRUSTED - 1.0)
    assert claim.term.renew_at == pytest.approx(1000.0 + 1.0)


@pytest.mark.parametrize(("late", "is_ours"), [(-0.001, True), (0.0, False), (5.0, False)])
def test_claim_that_is_answered_too_late_is_taken_back(late, is_ours):
    """Not a moment of validity left: the nodes are told to forget it, and nobody runs."""
    bench = Bench()
    plan = bench.rules.claim(REQUEST)
    step = first(plan)
    bench.clock.now += TRUSTED + late
    step = reply(plan, step, [granted()] * 3)
    if is_ours:
        assert isinstance(end_of(plan, step), Claim)
        return
    assert is_undo(step)
    outcome = end_of(plan, reply(plan, step, [YES] * 3))
    assert isinstance(outcome, Unavailable)
    assert "too late" in outcome.causes["quorum"]


@pytest.mark.parametrize(
    ("answers", "nodes", "expected"),
    [
        ([granted(), busy(), busy()], [0], Busy),
        ([busy(), busy(), SILENCE], [2], Busy),
        ([granted(), SILENCE, SILENCE], [0, 1, 2], Unavailable),
        ([granted(), granted("leases"), granted("leases")], [0, 1, 2], Unavailable),
        ([SILENCE, SILENCE, SILENCE], [0, 1, 2], Unavailable),
    ],
)
def test_claim_that_did_not_win_is_taken_back(answers, nodes, expected):
    """On all nodes that did not refuse; silent ones may have granted it."""
    plan = Bench().rules.claim(REQUEST)
    step = answer(plan, answers)
    assert is_undo(step, nodes=nodes)
    assert isinstance(end_of(plan, reply(plan, step, [YES] * 3)), expected)


def test_claim_that_every_node_refused_left_nothing_to_take_back():
    """No third command where nothing was written."""
    plan = Bench().rules.claim(REQUEST)
    outcome = end_of(plan, answer(plan, [busy(900), busy(700), busy(800)]))
    assert isinstance(outcome, Busy)
    assert outcome.left == 0.7


@pytest.mark.parametrize("error", [Interrupted, TimeLimitExceeded, TimeoutError])
def test_interrupted_claim_is_taken_back(error):
    """Whatever interrupts the asking thread: the nodes may have granted already."""
    plan = Bench().rules.claim(REQUEST)
    first(plan)
    step = plan.throw(error())
    assert is_undo(step)
    with pytest.raises(error):
        plan.send(votes([YES] * 3))


def test_claim_interrupted_while_nodes_are_admitted_is_taken_back():
    """The claim stands on a node by then."""
    plan = Bench().rules.claim(REQUEST)
    step = answer(plan, [granted(), granted(), not_admitted()])
    assert [command and command.script.name for command in step.commands] == [None, None, "admit"]
    assert is_undo(plan.throw(Interrupted()))
    with pytest.raises(Interrupted):
        plan.send(votes([YES] * 3))


def admission(age_ms):
    return VoteKind.GRANTED, ("marker", age_ms)


def test_new_nodes_that_serve_at_once_are_asked_again():
    """The very first message on fresh nodes does not have to go round the queue; it gets a token of its own."""
    bench = Bench()
    plan = bench.rules.claim(REQUEST)
    step = answer(plan, [not_admitted()] * 3)
    step = reply(plan, step, [admission(40_000)] * 3)
    assert is_undo(step)
    step = reply(plan, step, [NO] * 3)
    assert [command.args[0] for command in step.commands] == ["token-2"] * 3
    claim = end_of(plan, reply(plan, step, [granted()] * 3))
    assert isinstance(claim, Claim)
    assert [type(event) for event in bench.events] == [Admitted] * 3


def test_nodes_that_have_to_wait_are_not_asked_again():
    """They would only refuse again."""
    bench = Bench()
    plan = bench.rules.claim(REQUEST)
    step = answer(plan, [not_admitted("restarted", "a 1 30000 30000 records hash")] * 3)
    step = reply(plan, step, [admission(0)] * 3)
    assert is_undo(step)
    assert isinstance(end_of(plan, reply(plan, step, [NO] * 3)), Unavailable)


# -- read repair


def repairing(bench, answers):
    """Return a claim's plan and its completing step, after the one that takes the claim back."""
    plan = bench.rules.claim(REQUEST)
    step = answer(plan, answers)
    assert is_undo(step, nodes=[index for index, (kind, _) in enumerate(answers) if kind is not VoteKind.REFUSED])
    return plan, reply(plan, step, [YES] * bench.size)


def test_completion_on_too_few_nodes_is_spread_before_it_is_acted_on():
    """The record itself travels, token and result, so that all readers come to the same."""
    plan, step = repairing(Bench(), [done(), granted(), granted()])
    assert {command.script.name for command in step.commands} == {"complete"}
    assert step.commands[0].args == (completion().text(), 0, 60_000)
    outcome = end_of(plan, reply(plan, step, [(VoteKind.GRANTED, (completion().text(),))] * 2 + [SILENCE]))
    assert outcome == Completed(completion(), is_agreed=True)


def test_completion_that_cannot_be_spread_is_not_acted_on():
    """A skip on one node's word would lose the job if that node forgot."""
    plan, step = repairing(Bench(), [done(), SILENCE, SILENCE])
    outcome = end_of(plan, reply(plan, step, [(VoteKind.GRANTED, (completion().text(),)), SILENCE, SILENCE]))
    assert isinstance(outcome, Unavailable)


def test_spreading_meets_another_completion():
    """Two runs were completed: the one that W nodes hold by then is served, whichever was read first."""
    mine, theirs = completion("zzz"), completion("aaa")
    plan, step = repairing(Bench(), [done("zzz"), granted(), granted()])
    answers = [(VoteKind.GRANTED, (mine.text(),))] + [(VoteKind.REFUSED, ("done", theirs.text()))] * 2
    assert end_of(plan, reply(plan, step, answers)) == Completed(theirs, is_agreed=True)


def test_agreed_completion_needs_no_repair():
    """One round trip for the duplicate of a completed message."""
    plan = Bench().rules.claim(REQUEST)
    assert end_of(plan, answer(plan, [done(), done(), done()])) == Completed(completion(), is_agreed=True)


# -- renew


def test_renewal_lengthens_the_term():
    """From the moment before it was sent, for a whole lease."""
    bench = Bench()
    claim = bench.granted_claim()
    bench.clock.now += 1.0
    plan = bench.rules.renew(claim)
    step = first(plan)
    assert step.commands[0].script.name == "renew"
    assert step.commands[0].args == ("token-1", 3_000, 60_000)
    assert step.commands[0].undo is None
    assert end_of(plan, reply(plan, step, [YES, YES, SILENCE])) is True
    assert claim.term.valid_until == pytest.approx(1001.0 + TRUSTED)


def test_renewal_that_a_quorum_refuses_loses_the_claim():
    """Somebody took over, completed or forgot it: it cannot be ours again."""
    bench = Bench()
    claim = bench.granted_claim()
    plan = bench.rules.renew(claim)
    assert end_of(plan, answer(plan, [NO, NO, YES])) is False
    assert claim.term.is_lost
    assert bench.events == []


def test_renewal_without_a_quorum_is_tried_again_within_the_validity():
    """A transient fault costs nothing yet."""
    bench = Bench()
    claim = bench.granted_claim()
    bench.clock.now += 1.0
    plan = bench.rules.renew(claim)
    assert end_of(plan, answer(plan, [YES, SILENCE, NO])) is False
    assert not claim.term.is_lost
    assert bench.clock.now < claim.term.renew_at < claim.term.valid_until


def test_renewal_that_comes_after_the_end_does_not_revive():
    """The lease may have been taken over in between."""
    bench = Bench()
    claim = bench.granted_claim()
    bench.clock.now = claim.term.valid_until - 0.1
    plan = bench.rules.renew(claim)
    step = first(plan)
    assert step.timeout == pytest.approx(0.1)
    bench.clock.now = claim.term.valid_until
    assert end_of(plan, reply(plan, step, [YES] * 3)) is False
    assert claim.term.is_lost


def test_lost_claim_is_not_renewed():
    """Not even asked for."""
    bench = Bench()
    claim = bench.granted_claim()
    bench.clock.now += 60.0
    with pytest.raises(StopIteration) as end:
        first(bench.rules.renew(claim))
    assert end.value.value is False


# -- complete and abandon


def test_completion_is_recorded_once_w_nodes_hold_it():
    """The record keeps the claim's token, takes the result along and needs no undo: it is true."""
    bench = Bench()
    claim = bench.granted_claim()
    plan = bench.rules.complete(claim, '{"a":1}')
    step = first(plan)
    text, generation, retention = step.commands[0].args
    ours = claim.record.completed('{"a":1}')
    assert (Record.parse(text), generation, retention) == (ours, 0, 60_000)
    assert step.commands[0].undo is None
    held = (VoteKind.GRANTED, ())
    assert step.enough(Count.of([*votes([held, held]), None]))
    assert not step.enough(Count.of([*votes([held, SILENCE]), None]))
    assert end_of(plan, reply(plan, step, [held, held, SILENCE])) == Recorded(ours)


@pytest.mark.parametrize(
    ("write", "answers", "winner"),
    [
        (2, "ours ? ?", None),
        (2, "ours other ?", None),
        (2, "ours gone gone", "forgotten"),
        (2, "ours ours other", "ours"),
        (2, "ours other other", "other"),
        (3, "ours ours ?", None),
        (3, "ours ours ours", "ours"),
        (3, "ours ours other", "other"),  # all hold one, no three the same: the lowest token's
    ],
)
def test_completion_counts_equal_records_only(write, answers, winner):
    """What fewer than W nodes hold is not acknowledged; what another run recorded first becomes ours."""
    bench = Bench(write=write)
    claim = bench.granted_claim()
    plan = bench.rules.complete(claim, "42")
    step = first(plan)
    ours, other = claim.record.completed("42"), completion("other", tail="41")
    said = {
        "ours": (VoteKind.GRANTED, ()),
        "other": (VoteKind.REFUSED, ("done", other.text())),
        "gone": (VoteKind.REFUSED, ("gone", Record(State.FORGOTTEN, 1, 9, "", 0, 0, "", "").text())),
        "?": SILENCE,
    }
    recorded = end_of(plan, reply(plan, step, [said[word] for word in answers.split()]))
    outcomes = {"ours": Recorded(ours), "other": Recorded(other), "forgotten": Recorded(ours, is_forgotten=True)}
    assert recorded == outcomes.get(winner)


@pytest.mark.parametrize(
    ("answers", "had_it"), [([YES, YES, NO], True), ([YES, NO, NO], False), ([YES, SILENCE, NO], False)]
)
def test_abandon_says_whether_a_quorum_still_had_the_claim(answers, had_it):
    """By our token only, with the state and the reason that people will see."""
    bench = Bench()
    plan = bench.rules.abandon(bench.granted_claim(), State.FAILED, "because")
    step = first(plan)
    assert step.commands[0].script.name == "abandon"
    assert step.commands[0].args == ("token-1", "failed", 60_000, "because")
    assert end_of(plan, reply(plan, step, answers)) is had_it


def test_attempts_have_tokens_of_their_own():
    """Two deliveries never share one, nor two attempts of one delivery."""
    bench = Bench()
    tokens = []
    for _ in range(3):
        plan = bench.rules.claim(REQUEST)
        step = first(plan)
        tokens.append(step.commands[0].args[0])
        end_of(plan, reply(plan, step, [busy()] * 3))
    assert tokens == ["token-1", "token-2", "token-3"]
