"""Who may vote: what is written into the markers, by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from redlock import Settings, SettingsError, Vote
from redlock.admission import admit, asks_for_raise, decide, raise_max_ttl, vouch
from redlock.marker import Marker, Refusal
from tests.tools.plans import cut_off, granted, marked, named, not_admitted, refused, result_of, scripts_of, unknown

SETTINGS = Settings(max_ttl=30.0)
OLD = "ab12 1000 30000 30000 records 0a1b2c3d"
LONGER = "ab12 1000 90000 90000 records 0a1b2c3d"
LEASES = "ab12 1000 20000 20000 leases 0a1b2c3d"

RESTARTED = not_admitted("restarted", 0, OLD)
NEW = not_admitted("new")
WAITING = not_admitted("waiting", 700, OLD)
TOO_LONG = not_admitted("max_ttl", 0, OLD)


def written(votes: Sequence[Vote], settings: Settings = SETTINGS) -> list[tuple[str, int, str] | None]:
    """Return since, the announced max_ttl in ms and the rights for each node."""
    return [
        decision and (decision.since, decision.longest.announced_ms, decision.rights)
        for decision in decide(named(votes), settings)
    ]


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        pytest.param([granted()] * 3, [None] * 3, id="all serve"),
        pytest.param([granted(), refused(), unknown()], [None] * 3, id="none asks"),
        pytest.param([granted(), granted(), RESTARTED], [None, None, ("now", 30_000, "leases")], id="one restarted"),
        pytest.param([granted(), refused(), NEW], [None, None, ("now", 30_000, "leases")], id="one flushed"),
        pytest.param([NEW] * 3, [("boot", 30_000, "fresh")] * 3, id="first use, or all flushed"),
        pytest.param([RESTARTED] * 3, [("now", 30_000, "fresh")] * 3, id="all restarted with their files"),
        pytest.param([RESTARTED, NEW, NEW], [("now", 30_000, "fresh")] * 3, id="all forgot, one kept its marker"),
        pytest.param([NEW, NEW, unknown()], [("now", 30_000, "leases")] * 2 + [None], id="first use, one down"),
        pytest.param([NEW, NEW, WAITING], [("now", 30_000, "leases")] * 2 + [None], id="two flushed, one waits"),
        pytest.param([WAITING] * 3, [None] * 3, id="all wait"),
        pytest.param([TOO_LONG] * 3, [None] * 3, id="all serve, by a shorter max_ttl"),
    ],
)
def test_what_is_written(votes: Sequence[Vote], expected: list[Any]) -> None:
    assert written(votes) == expected


@pytest.mark.parametrize(
    "votes",
    [
        pytest.param([NEW, not_admitted("max_ttl", 0, LONGER), granted()], id="in a marker that was seen"),
        pytest.param([NEW, granted(7, 1_000_000, "90000/30000"), granted()], id="by a node that granted"),
        pytest.param([NEW, refused("held", 10, "90000/90000"), granted()], id="by a node that refused"),
        pytest.param([NEW, not_admitted("waiting", 5, LONGER), granted()], id="by a node that waits itself"),
        pytest.param([not_admitted("restarted", 0, LONGER), granted(), granted()], id="in its own old marker"),
    ],
)
def test_longer_max_ttl_is_remembered(votes: Sequence[Vote]) -> None:
    """A client with a shorter max_ttl cannot make a node that forgot vote early."""
    assert written(votes)[0] == ("now", 90_000, "leases")


def test_clients_own_longer_max_ttl_counts() -> None:
    assert written([NEW, granted(), granted()], Settings(max_ttl=60.0))[0] == ("now", 60_000, "leases")


def test_clients_own_longer_max_ttl_is_not_granted_by_what_only_one_node_knows() -> None:
    """The node waits for the longer time, and grants by the one that all the others know."""
    decision = decide(named([NEW, granted(), granted()]), Settings(max_ttl=60.0))[0]
    assert decision is not None
    assert (decision.longest.announced_ms, decision.longest.granted_ms) == (60_000, 30_000)


def test_node_is_not_admitted_before_one_that_remembers_was_read() -> None:
    """The others are silent and may remember a longer max_ttl than this client's: nothing is written yet."""
    assert written([unknown(), NEW, unknown()], Settings(ttl=0.5, max_ttl=1.0)) == [None] * 3


def test_what_was_seen_goes_back_to_the_node() -> None:
    """The script writes only while marker and identity are those that were refused with, and not much later."""
    decision = decide(named([granted(), granted(), RESTARTED]), SETTINGS)[2]
    assert decision is not None
    command = decision.command(SETTINGS)
    seen, identity, too_late_ms, *rest = command.args[:7]
    assert command.keys == ("redlock:marker",)
    assert (seen, identity, rest) == (OLD, "cd34", [30_000, 30_000, "leases", "now"])
    assert 5_000_000 < int(too_late_ms) <= 5_000_000 + 2_000 * SETTINGS.node_timeout
    assert command.undo is None


# -- nodes that have all forgotten

FRESH = "cd34 1000 30000 30000 fresh 0a1b2c3d"
ENTITLED = "cd34 1000 30000 30000 records 0a1b2c3d"


def test_all_are_marked_fresh_before_the_first_may_speak_for_the_records() -> None:
    """Else a node that has the right could not vouch for the others if the giving breaks off half-way."""
    plan = admit(named([NEW] * 3), SETTINGS)
    assert {command.args[5:7] for command in next(plan).commands} == {("fresh", "boot")}
    step = plan.send(named([granted(FRESH, 10**9)] * 3))
    assert {(command.args[0], *command.args[5:7]) for command in step.commands} == {(FRESH, "records", "keep")}
    events = result_of(plan, named([granted(ENTITLED, 10**9)] * 3))
    assert [(event.node, event.rights) for event in events] == [(node, "records") for node in ("n1", "n2", "n3")]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(unknown(), id="silence"),
        pytest.param(refused("changed", ""), id="it was flushed"),
        pytest.param(refused("changed", FRESH.replace("cd34", "ab12")), id="it restarted"),
        pytest.param(refused("changed", FRESH.replace("fresh", "leases")), id="others saw it forget alone"),
    ],
)
def test_nobody_may_speak_for_the_records_before_all_are_marked(answer: Vote) -> None:
    plan = admit(named([NEW] * 3), SETTINGS)
    next(plan)
    events = result_of(plan, named([granted(FRESH, 10**9), granted(FRESH, 10**9), answer]))
    assert {event.rights for event in events} == {"fresh"}


@pytest.mark.parametrize("theirs", [FRESH, ENTITLED])
def test_two_that_meet_new_nodes_at_once_give_the_right_together(theirs: str) -> None:
    """What the other one has marked, or given already, counts as if this one had; its max_ttl stays."""
    plan = admit(named([NEW] * 3), SETTINGS)
    next(plan)
    changed = refused("changed", theirs.replace("30000 30000", "60000 30000"))
    step = plan.send(named([granted(FRESH, 10**9), changed, granted(FRESH, 10**9)]))
    assert [command.args[3:7] for command in step.commands][:2] == [
        (30_000, 30_000, "records", "keep"),
        (60_000, 30_000, "records", "keep"),
    ]
    events = result_of(
        plan, named([granted(ENTITLED, 10**9), refused("changed", ENTITLED), refused("changed", ENTITLED)])
    )
    assert [(event.node, event.rights) for event in events] == [("n1", "records"), ("n3", "records")]


# -- a longer max_ttl


def test_longer_max_ttl_is_announced_everywhere_before_any_node_grants_by_it() -> None:
    """Two rounds; nothing was forgotten, so since and rights stay and nobody waits."""
    votes = named([TOO_LONG, not_admitted("max_ttl", 0, LEASES), TOO_LONG])
    assert asks_for_raise(votes)
    plan = raise_max_ttl(votes, Settings(max_ttl=120.0))
    step = next(plan)
    assert [command.args[0] for command in step.commands] == [OLD, LEASES, OLD]
    assert [command.args[3:7] for command in step.commands] == [
        (120_000, 30_000, "records", "keep"),
        (120_000, 20_000, "leases", "keep"),
        (120_000, 30_000, "records", "keep"),
    ]
    announced = [f"ab12 1000 120000 {granted_ms} leases 0a1b2c3d" for granted_ms in (30_000, 20_000, 30_000)]
    step = plan.send(named(granted(marker, 10**9) for marker in announced))
    assert [command.args[0] for command in step.commands] == announced
    assert {command.args[3:5] for command in step.commands} == {(120_000, 120_000)}
    result_of(plan, named(granted("granted", 10**9) for _ in range(3)))


def test_longer_max_ttl_needs_all_nodes() -> None:
    """Who is away would remember the shorter one, and admit others too early later; the error names it."""
    with pytest.raises(SettingsError, match="n3"):
        next(raise_max_ttl(named([TOO_LONG, TOO_LONG, unknown()]), Settings(max_ttl=120.0)))


@pytest.mark.parametrize("answer", [unknown(), refused("changed", "other")], ids=["silence", "changed meanwhile"])
def test_longer_max_ttl_that_was_not_announced_everywhere_is_granted_nowhere(answer: Vote) -> None:
    plan = raise_max_ttl(named([TOO_LONG] * 3), Settings(max_ttl=120.0))
    next(plan)
    announced = granted("ab12 1000 120000 30000 records 0a1b2c3d", 10**9)
    with pytest.raises(SettingsError, match="n3"):
        plan.send(named([announced, announced, answer]))


def test_longer_max_ttl_is_not_granted_past_a_node_that_waits_and_knows_less() -> None:
    """It is told too, or no more is granted than it knows: it will remember for others once it votes."""
    waiting = not_admitted("waiting", 700, "ab12 1000 60000 60000 records 0a1b2c3d")
    plan = raise_max_ttl(named([TOO_LONG, TOO_LONG, waiting]), Settings(max_ttl=120.0))
    step = next(plan)
    told = [command.args[3] if command else 60_000 for command in step.commands]
    cut_off(plan)
    assert told[2] >= max(told[:2])


def test_nodes_that_know_already_are_not_asked_again() -> None:
    """Another client announced it before, and then was interrupted."""
    announced = not_admitted("max_ttl", 0, "ab12 1000 120000 30000 records 0a1b2c3d")
    plan = raise_max_ttl(named([announced] * 3), Settings(max_ttl=120.0))
    step = next(plan)
    assert scripts_of(step) == ["admit"] * 3
    assert {command.args[3:5] for command in step.commands} == {(120_000, 120_000)}
    cut_off(plan)


@pytest.mark.parametrize("votes", [[granted()] * 3, [NEW] * 3, [WAITING, unknown(), refused()]])
def test_nobody_asks_for_a_raise(votes: Sequence[Vote]) -> None:
    assert not asks_for_raise(named(votes))


# -- somebody's word


def test_vouching_keeps_the_longest_max_ttl_and_gives_all_rights() -> None:
    plan = vouch(named(map(marked, ("", LONGER, LEASES))), SETTINGS)
    step = next(plan)
    assert [command.args[0] for command in step.commands] == ["", LONGER, LEASES]
    assert {command.args[3:7] for command in step.commands} == {(90_000, 90_000, "records", "ever")}
    events = result_of(plan, named([granted("m", 10**12), granted("m", 10**12), unknown()]))
    assert [event.node for event in events] == ["n1", "n2"]


# -- the forms


def test_marker_reads_its_own_form() -> None:
    marker = Marker.parse("ab12 1000 90000 30000 records 0a1b2c3d")
    assert marker == Marker("ab12", 1000, 90_000, 30_000, "records", "0a1b2c3d")
    assert Marker.parse("") is None


@pytest.mark.parametrize("vote", [granted(), refused(), unknown()])
def test_only_a_refusal_to_vote_is_one(vote: Vote) -> None:
    assert Refusal.of(vote) is None


def test_refusal_says_who_the_node_was_then() -> None:
    refusal = Refusal.of(WAITING)
    assert refusal == Refusal("waiting", 700, OLD, "cd34", 5_000_000)
