"""What records and the nodes' answers about them mean: values in, values out."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dramatiq_idem.judgement import (
    BEING_FORGOTTEN,
    Busy,
    Completed,
    Failed,
    Granted,
    Outdated,
    Unavailable,
    agreed,
    granted_by_all,
    judge_claim,
)
from dramatiq_idem.record import Quorums, Record, State, about_text
from redlock import Vote, VoteKind

ODD_IDS = ["", "-", "--", "%2D", "a b", " ", "\n", "a\x00b", "ключ", "\U0001f600", "%", "2024-01-01T00:00:00", "'\"\\"]


def record(state=State.RUNNING, generation=0, fence=7, owner="a", **other):
    values = {"takeovers": 0, "deadline_ms": 0, "fingerprint": "", "message_id": "m", "tail": ""} | other
    return Record(state, generation, fence, owner, **values)


# -- the text on the nodes

numbers = st.integers(0, 2**53)
words = st.text("ABCxyz019_=", min_size=0, max_size=22)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(ODD_IDS)
records = st.builds(
    Record, st.sampled_from(State), numbers, numbers, words, st.integers(0, 10**6), numbers, words, texts, texts
)


@given(records)
def test_what_is_written_is_read(value):
    """A record survives its turn through text, whatever its message is called."""
    assert Record.parse(value.text()) == value


@given(records)
def test_text_has_the_form_that_the_scripts_read(value):
    """lua/record.lua finds eight words and a tail, however odd the message id."""
    form = r"(\w+) (\d+) (\d+) (\S+) (\d+) (\d+) (\S+ \S+) ?(.*)"
    found = re.fullmatch(form, value.text(), re.ASCII | re.DOTALL)
    assert found
    assert found[7] == about_text(value.fingerprint, value.message_id)
    assert found[7].isascii()


@pytest.mark.parametrize("message_id", ODD_IDS)
def test_message_id_is_one_ascii_word(message_id):
    """Neither a space nor "-" in an id shifts the words behind it."""
    about = about_text("", message_id)
    assert about.startswith("- ")
    assert re.fullmatch(r"[!-~]+", about[2:])
    assert (about[2:] == "-") is (message_id == "")


def test_text_is_for_people_too():
    """The layout in lua/record.lua, word by word."""
    value = record(State.DONE, 2, 1234567890123456, "tok", takeovers=1, fingerprint="f00", message_id="id", tail="42")
    assert value.text() == "done 2 1234567890123456 tok 1 0 f00 id 42"
    assert record(State.FREE, owner="").text() == "free 0 7 - 0 0 - m"


def test_completion_keeps_who_ran_it():
    """What was there before the run is replaced by its result; the lease's end goes."""
    running = record(deadline_ms=99, takeovers=2, tail="free 0 6 - 0 0 - m")
    assert running.completed('{"a":1}') == record(State.DONE, takeovers=2, tail='{"a":1}')
    assert running.completed("").tail == ""


@pytest.mark.parametrize(
    "text", ["", "x", "done 1", "napping 0 1 t 0 0 - m", "done one 1 t 0 0 - m", "done 0 1 t 0 0 -"]
)
def test_foreign_text_is_refused(text):
    """What is no record raises instead of meaning something."""
    with pytest.raises(ValueError, match=r"no record|not enough values|invalid literal"):
        Record.parse(text)


# -- what a claim's answers mean


def votes_of(line):
    """Read answers: G granted, B busy, X failed, D E F done by a b c, ? nothing; l for no rights; the generation."""
    return [_vote(f"node{index}", word) for index, word in enumerate(line.split())]


def _vote(node, word):
    what, rights, generation = re.fullmatch(r"([GBXDEF?])(l?)(\d?)", word).groups()
    rights = "leases" if rights else "records"
    if what == "?":
        cause = "may not vote (waiting)" if generation else "no reply in time"
        return Vote(
            node, VoteKind.UNKNOWN, ("waiting", 500, "marker", "f00", 9, int(generation)) if generation else (), cause
        )
    number = int(generation or 0)
    if what == "G":
        return Vote(node, VoteKind.GRANTED, (rights, number, 5, 0, 0, "30000/30000"))
    if what == "B":
        held = record(generation=number, owner="theirs", message_id="holder").text()
        return Vote(node, VoteKind.REFUSED, ("busy", 700 + int(node[-1]), held, rights, "30000/30000"))
    if what == "X":
        failed = record(State.FAILED, number, owner="", fence=int(node[-1]), tail='["E",""]').text()
        return Vote(node, VoteKind.REFUSED, ("failed", rights, failed, "30000/30000"))
    done = record(State.DONE, number, owner="abc"["DEF".index(what)]).text()
    return Vote(node, VoteKind.REFUSED, ("done", rights, done, "30000/30000"))


ONE, THREE, THREE_ALL, FIVE, FIVE_ALL = (1, 1), (3, 2), (3, 3), (5, 3), (5, 5)
CLAIMS = [
    (ONE, "G", "granted"),
    (ONE, "Gl", "unavailable"),
    (ONE, "D", "completed a"),
    (ONE, "Dl", "unavailable"),
    (ONE, "B", "busy"),
    (ONE, "?", "unavailable"),
    # grants
    (THREE, "G G G", "granted"),
    (THREE, "G G ?", "granted"),
    (THREE, "G ? ?", "unavailable"),
    (THREE, "G G Gl", "granted"),
    (THREE, "G G B", "granted"),
    # a node that forgot grants the lease, and says nothing about what was done
    (THREE, "G Gl Gl", "unavailable"),
    (THREE, "G Gl ?", "unavailable"),
    (THREE, "Gl Gl Gl", "unavailable"),
    (THREE_ALL, "G Gl ?", "granted"),
    (THREE_ALL, "Gl Gl ?", "unavailable"),
    (THREE_ALL, "G ? ?", "unavailable"),
    (FIVE, "G G G ? ?", "granted"),
    (FIVE, "G G G Gl Gl", "granted"),
    (FIVE, "G G Gl Gl Gl", "unavailable"),
    (FIVE, "G G ? ? ?", "unavailable"),
    (FIVE_ALL, "G Gl Gl ? ?", "granted"),
    (FIVE_ALL, "Gl Gl Gl Gl Gl", "unavailable"),
    # one completion decides; W equal ones are acted on
    (THREE, "D G G", "completed a?"),
    (THREE, "D ? ?", "completed a?"),
    (THREE, "D G B", "completed a?"),
    (THREE, "D D G", "completed a"),
    (THREE, "D D ?", "completed a"),
    (THREE, "D E ?", "completed a?"),
    (THREE, "E D G", "completed a?"),
    (THREE, "F E E", "completed b"),
    (THREE, "F E D", "completed a"),
    (THREE_ALL, "D D G", "completed a?"),
    (THREE_ALL, "D D D", "completed a"),
    (THREE_ALL, "E E D", "completed a"),
    (FIVE, "D G G G G", "completed a?"),
    (FIVE, "D D E E ?", "completed a?"),
    (FIVE, "D D E E F", "completed a"),
    (FIVE, "F F F D D", "completed c"),
    # of a node without rights only if enough others show no higher generation
    (THREE, "Dl G G", "completed a?"),
    (THREE, "Dl Dl G", "unavailable"),
    (THREE, "Dl Gl G", "unavailable"),
    (THREE, "Dl D G", "completed a"),
    (THREE, "Dl ? ?", "unavailable"),
    (THREE, "Dl B B", "completed a?"),
    (THREE_ALL, "Dl G ?", "completed a?"),
    # somebody forgot the key since
    (THREE, "D0 G1 G1", "granted"),
    (THREE, "D1 G0 G0", "completed a?"),
    (THREE, "D1 D0 G1", "completed a?"),
    (THREE, "D0 D0 ?1", "unavailable"),
    (THREE, "D0 D0 ?0", "completed a"),
    (THREE, "D0 D0 G1", "unavailable"),
    # busy
    (THREE, "B B B", "busy"),
    (THREE, "B B ?", "busy"),
    (THREE, "B B G", "busy"),
    (THREE, "B G ?", "busy"),
    (THREE, "B ? ?", "busy"),
    (THREE, "B G Gl", "busy"),
    (FIVE, "B B B ? ?", "busy"),
    (FIVE, "B B G G ?", "busy"),
    (FIVE, "B B G G B", "busy"),
    (FIVE, "B B G G G", "granted"),
    # failed for good, and asked for: one that remembers it is enough, where a run would have been granted
    (ONE, "X", "failed"),
    (ONE, "Xl", "unavailable"),
    (THREE, "X X X", "failed"),
    (THREE, "X G G", "failed"),
    (THREE, "X G ?", "failed"),
    (THREE, "X ? ?", "unavailable"),
    (THREE, "Xl Gl G", "unavailable"),
    (THREE, "Xl G G", "failed"),
    (THREE, "X B B", "busy"),
    (THREE, "X X B", "failed"),
    (THREE, "X X D", "completed a?"),
    (THREE, "X D ?", "completed a?"),
    (THREE, "X0 G1 G1", "granted"),
    (THREE, "X1 G0 G1", "outdated"),
    (THREE, "X1 D0 X0", "outdated"),
    (THREE, "X0 X1 X1", "failed"),
    (THREE, "X0 B1 ?", "busy"),
    (FIVE, "X X G ? ?", "failed"),
    (FIVE, "X X ? ? ?", "unavailable"),
]


def said(outcome):
    if isinstance(outcome, Completed):
        return f"completed {outcome.record.token}" + ("" if outcome.is_agreed else "?")
    return type(outcome).__name__.lower()


@pytest.mark.parametrize(("size", "answers", "expected"), CLAIMS, ids=[f"{s[0]}/{s[1]}:{a}" for s, a, _ in CLAIMS])
def test_claim(size, answers, expected):
    """The table: a question mark behind a completion means that fewer than W nodes hold it."""
    assert said(judge_claim(votes_of(answers), Quorums(*size))) == expected


def grants(*fields):
    """Return grants with the given generation, fence, takeovers and whether a run was ever taken over."""
    return [Vote(f"n{i}", VoteKind.GRANTED, ("records", *each, "30000/30000")) for i, each in enumerate(fields)]


def test_claim_continues_the_furthest_record():
    """Among the grants the highest count of takeovers is the claim's, wherever it stands; it has all fences."""
    votes = grants((1, 5, 0, 0), (1, 6, 2, 1), (1, 6, 1, 1), (1, 4, 3, 1))
    assert judge_claim(votes, Quorums(4, 3)) == Granted(1, (5, 6, 6, 4), 3, is_contested=True)


def test_one_node_that_knows_of_a_takeover_makes_a_claim_contested():
    """The others may have been taken over without a run before, or have forgotten it."""
    votes = grants((0, 5, 0, 0), (0, 5, 0, 1), (0, 5, 0, 0))
    assert judge_claim(votes, Quorums(3, 2)) == Granted(0, (5, 5, 5), 0, is_contested=True)


def test_latest_of_several_failures_counts():
    """A node that was away when the key failed again remembers an older one."""
    outcome = judge_claim(votes_of("X X G"), Quorums(3, 2))
    assert isinstance(outcome, Failed)
    assert outcome.record.fence == 1


def test_claim_that_meets_a_newer_generation_is_asked_again():
    """Somebody forgets the key meanwhile: a claim of the old generation must not run."""
    votes = grants((0, 5, 0, 0), (1, 5, 0, 0), (1, 5, 0, 0))
    assert judge_claim(votes, Quorums(3, 2)) == Outdated(1)
    assert isinstance(judge_claim(votes[1:] * 2, Quorums(3, 2), 1), Granted)


def test_busy_names_the_holder_and_the_time_left():
    """The shortest of the times left: asking again too early costs one message, too late a delay."""
    outcome = judge_claim(votes_of("? B B"), Quorums(3, 2))
    assert isinstance(outcome, Busy)
    assert (outcome.record.message_id, outcome.left) == ("holder", 0.701)


def test_unavailable_names_each_node_and_cause():
    """Whoever reads the event learns which node is missing, and which one has forgotten."""
    outcome = judge_claim(votes_of("G Gl ?"), Quorums(3, 2))
    assert isinstance(outcome, Unavailable)
    assert set(outcome.causes) == {"node1", "node2"}
    assert "forgotten" in outcome.causes["node1"]
    assert outcome.causes["node2"] == "no reply in time"


def test_unavailable_says_so_where_a_key_was_forgotten_on_too_few_nodes():
    """No node is to blame: all have answered."""
    assert judge_claim(votes_of("D0 D0 G1"), Quorums(3, 2)) == Unavailable(BEING_FORGOTTEN)


answers = st.builds(
    "".join, st.tuples(st.sampled_from("GBDEF?"), st.sampled_from(["", "l"]), st.sampled_from(["", "0", "1"]))
)
clusters = st.sampled_from([(n, w) for n in range(1, 6) for w in range(n // 2 + 1, n + 1)])


@st.composite
def rounds(draw):
    size = draw(clusters)
    return Quorums(*size), draw(st.lists(answers, min_size=size[0], max_size=size[0]))


@given(rounds())
def test_grants_and_completions_have_their_quorum(round_):
    """Whatever the nodes answer: no body without a majority and N - W + 1 that remember, no skip without W."""
    quorums, words = round_
    outcome = judge_claim(votes_of(" ".join(words)), quorums)
    if isinstance(outcome, Granted):
        grants = [word for word in words if word[0] == "G"]
        assert len(grants) > quorums.nodes / 2
        assert sum("l" not in word for word in grants) >= quorums.nodes - quorums.write + 1
    if isinstance(outcome, Completed) and outcome.is_agreed:
        done = [word for word in words if word[0] in "DEF"]
        top = Counter(word[0] for word in done).most_common(1)[0][1]
        assert top >= quorums.write or len(done) == quorums.nodes


@given(st.lists(st.sampled_from(["G", "G", "G", "Gl", "G1", "B", "D", "X", "?"]), min_size=1, max_size=5))
def test_what_all_grant_is_judged_alike(words):
    """The short way to a grant is one where the long way leads to the same, and is open if nothing else was said."""
    votes = votes_of(" ".join(words))
    shortly = granted_by_all(votes)
    assert shortly in (None, judge_claim(votes, Quorums(len(votes), len(votes) // 2 + 1)))
    assert (shortly is not None) == (set(words) in ({"G"}, {"G1"}))


@given(rounds(), st.data())
def test_acknowledged_completion_is_never_run_again(round_, data):
    """A completion that W nodes hold keeps every claim from being granted, as long as those nodes keep their memory."""
    quorums, words = round_
    holders = data.draw(st.sets(st.integers(0, quorums.nodes - 1), min_size=quorums.write, max_size=quorums.nodes))
    heard = [data.draw(st.sampled_from(["D1", "?", "?1"])) if i in holders else word for i, word in enumerate(words)]
    assert not isinstance(judge_claim(votes_of(" ".join(heard)), quorums), Granted)


# -- which completion counts

A, B, C = (record(State.DONE, owner=owner) for owner in "abc")
AGREED = [
    (ONE, [], None),
    (ONE, [B], B),
    (THREE, [], None),
    (THREE, [A], None),
    (THREE, [A, A], A),
    (THREE, [A, B], None),
    (THREE, [C, B], None),
    (THREE, [A, B, B], B),
    (THREE, [C, B, A], A),
    (THREE_ALL, [A, A], None),
    (THREE_ALL, [B, B, B], B),
    (THREE_ALL, [C, C, B], B),
    (FIVE, [B, B, A, A], None),
    (FIVE, [C, C, B, B, B], B),
    (FIVE, [C, C, B, B, A], A),
    (FIVE_ALL, [B, B, B, B], None),
]


@pytest.mark.parametrize(("size", "held", "expected"), AGREED)
def test_agreed(size, held, expected):
    """W equal ones count; if none can reach W any more, the lowest token's does."""
    assert agreed(held, Quorums(*size)) == expected


@given(clusters, st.lists(st.sampled_from([A, B, C]), min_size=5, max_size=5), st.sets(st.integers(0, 4)))
def test_readers_agree(size, on_nodes, heard):
    """Two readers of the same nodes never act on different completions, whoever hears less."""
    quorums = Quorums(*size)
    on_nodes = on_nodes[: quorums.nodes]
    some = agreed([held for i, held in enumerate(on_nodes) if i in heard], quorums)
    assert some is None or some == agreed(on_nodes, quorums)


@pytest.mark.parametrize(
    ("nodes", "write", "lease", "absence"),
    [(1, 1, 1, 1), (2, 2, 2, 1), (3, 2, 2, 2), (3, 3, 2, 1), (4, 3, 3, 2), (5, 3, 3, 3), (5, 4, 3, 2), (5, 5, 3, 1)],
)
def test_quorums_meet(nodes, write, lease, absence):
    """W nodes that confirm and N - W + 1 that know of nothing have one in common."""
    quorums = Quorums(nodes, write)
    assert (quorums.lease, quorums.absence) == (lease, absence)
    assert quorums.write + quorums.absence > nodes
    assert 2 * quorums.lease > nodes
