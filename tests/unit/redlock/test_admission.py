"""Who may vote: what is written into the markers, by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from redlock import Settings, SettingsError, Vote
from redlock.admission import Admission, Marker, Refusal, decide, vouch
from tests.tools.plans import granted, marked, named, not_admitted, refused, result_of, unknown

SETTINGS = Settings(max_ttl=30.0)
OLD = "ab12 1000 30000 records 0a1b2c3d"
LONGER = "ab12 1000 90000 records 0a1b2c3d"
LEASES = "ab12 1000 20000 leases 0a1b2c3d"


def written(votes: Sequence[Vote], settings: Settings = SETTINGS) -> list[tuple[str, int, str] | None]:
    """Return since, max_ttl in ms and rights for each node."""
    return [
        decision and (decision.since, decision.max_ttl_ms, decision.rights)
        for decision in decide(named(votes), settings)
    ]


RESTARTED = not_admitted("restarted", 0, OLD)
NEW = not_admitted("new")
WAITING = not_admitted("waiting", 700, OLD)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        pytest.param([granted()] * 3, [None] * 3, id="all serve"),
        pytest.param([granted(), refused(), unknown()], [None] * 3, id="none asks"),
        pytest.param([granted(), granted(), RESTARTED], [None, None, ("now", 30_000, "leases")], id="one restarted"),
        pytest.param([granted(), refused(), NEW], [None, None, ("now", 30_000, "leases")], id="one flushed"),
        pytest.param([NEW] * 3, [("boot", 30_000, "records")] * 3, id="first use, or all flushed"),
        pytest.param([RESTARTED] * 3, [("now", 30_000, "records")] * 3, id="all restarted with their files"),
        pytest.param([RESTARTED, NEW, NEW], [("now", 30_000, "records")] * 3, id="all forgot, one kept its marker"),
        pytest.param([NEW, NEW, unknown()], [("now", 30_000, "leases")] * 2 + [None], id="first use, one down"),
        pytest.param([NEW, NEW, WAITING], [("now", 30_000, "leases")] * 2 + [None], id="two flushed, one waits"),
        pytest.param([WAITING] * 3, [None] * 3, id="all wait"),
    ],
)
def test_what_is_written(votes: Sequence[Vote], expected: list[Any]) -> None:
    assert written(votes) == expected


@pytest.mark.parametrize(
    "votes",
    [
        pytest.param([NEW, not_admitted("max_ttl", 0, LONGER), granted()], id="in a marker that was seen"),
        pytest.param([NEW, granted(7, 1_000_000, 90_000), granted()], id="by a node that granted"),
        pytest.param([NEW, refused("held", 10, 90_000), granted()], id="by a node that refused"),
        pytest.param([NEW, not_admitted("waiting", 5, LONGER), granted()], id="by a node that waits itself"),
        pytest.param([not_admitted("restarted", 0, LONGER), granted(), granted()], id="in its own old marker"),
    ],
)
def test_longer_max_ttl_is_remembered(votes: Sequence[Vote]) -> None:
    """A client with a shorter max_ttl cannot make a node that forgot vote early."""
    decision = decide(named(votes), SETTINGS)[0]
    assert decision is not None
    assert decision.max_ttl_ms == 90_000


def test_clients_own_longer_max_ttl_counts() -> None:
    assert written([NEW, granted(), granted()], Settings(max_ttl=60.0))[0] == ("now", 60_000, "leases")


def test_node_is_not_admitted_before_one_that_remembers_was_read() -> None:
    """The others are silent and may remember a longer max_ttl than this client's: nothing is written yet."""
    assert written([unknown(), NEW, unknown()], Settings(ttl=0.5, max_ttl=1.0)) == [None] * 3


@pytest.mark.parametrize("marker", [LONGER, LEASES])
def test_raised_max_ttl_keeps_since_and_rights(marker: str) -> None:
    """Nothing was forgotten, so nobody waits, and no right is gained."""
    settings = Settings(max_ttl=120.0)
    rights = marker.split()[3]
    votes = [not_admitted("max_ttl", 0, marker)] * 3
    assert written(votes, settings) == [("keep", 120_000, rights)] * 3


def test_longer_max_ttl_needs_all_nodes() -> None:
    """The first longer lease waits until nobody is left who remembers the shorter one; the error names who is away."""
    with pytest.raises(SettingsError, match="n3"):
        decide(named([not_admitted("max_ttl", 0, OLD), not_admitted("max_ttl", 0, OLD), unknown()]), SETTINGS)


@pytest.mark.parametrize(
    "votes",
    [
        pytest.param([granted(), unknown(), unknown()], id="nobody asks to raise"),
        pytest.param([not_admitted("max_ttl", 0, OLD)] * 3, id="all are there"),
        pytest.param([not_admitted("max_ttl", 0, OLD), granted(), NEW], id="all are there, in other states"),
    ],
)
def test_max_ttl_may_be_raised(votes: Sequence[Vote]) -> None:
    decide(named(votes), SETTINGS)


def test_what_was_seen_goes_back_to_the_node() -> None:
    """The script writes only while marker and identity are those that were refused with, and not much later."""
    decision = decide(named([granted(), granted(), RESTARTED]), SETTINGS)[2]
    assert decision is not None
    command = decision.command(SETTINGS)
    seen, identity, too_late_ms, max_ttl_ms, rights, since = command.args[:6]
    assert command.keys == ("redlock:marker",)
    assert (seen, identity, max_ttl_ms, rights, since) == (OLD, "cd34", 30_000, "leases", "now")
    assert 5_000_000 < int(too_late_ms) <= 5_000_000 + 2_000 * SETTINGS.node_timeout
    assert command.undo is None


def test_vouching_keeps_the_longest_max_ttl_and_gives_all_rights() -> None:
    plan = vouch(named(map(marked, ("", LONGER, LEASES))), SETTINGS)
    step = next(plan)
    assert [command.args[0] for command in step.commands] == ["", LONGER, LEASES]
    assert {command.args[3:6] for command in step.commands} == {(90_000, "records", "ever")}
    events = result_of(plan, named([granted("m", 10**12), granted("m", 10**12), unknown()]))
    assert [event.node for event in events] == ["n1", "n2"]


def test_marker_reads_its_own_form() -> None:
    marker = Marker.parse(OLD)
    assert marker is not None
    assert (marker.identity, marker.since_ms, marker.max_ttl_ms, marker.rights) == ("ab12", 1000, 30_000, "records")
    assert Marker.parse("") is None


@pytest.mark.parametrize("vote", [granted(), refused(), unknown(), Vote("n", unknown().kind)])
def test_only_a_refusal_to_vote_is_one(vote: Vote) -> None:
    assert Refusal.of(vote) is None


def test_guard_that_is_off_asks_for_nothing() -> None:
    """Without the guard no node refuses for what it forgot; should one still do, the wait is nought."""
    settings = Settings(restart_guard=False)
    assert settings.guard == "0"
    assert isinstance(decide(named([NEW, granted(), granted()]), settings)[0], Admission)
