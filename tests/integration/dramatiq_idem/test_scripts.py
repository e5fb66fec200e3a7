"""Each script on a real node, by table: states x commands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis

from dramatiq_idem.claims import ABANDON, CLAIM, COMPLETE, FENCE, RENEW, UNDO
from dramatiq_idem.record import Record, State, about_text
from redlock import Redlock
from redlock.local import LocalNodes

KEY, MARKER = "idem:record:pay:1", "idem:marker"
LEASE, RETENTION, GUARD = 5_000, 60_000, "1.02"
OLD_TTL = 30_000
ABOUT = "- message-1"
BIG = 2**52 + 1  # `..` and `tostring` in Lua would round it


@pytest.fixture
def node(trio_on_each_server: LocalNodes):
    """One voting node, and what a test does with it."""
    redlock = Redlock(trio_on_each_server.urls, namespace="idem")
    redlock.bootstrap()
    redlock.close()
    with redis.Redis.from_url(trio_on_each_server.urls[0], decode_responses=True, socket_timeout=5.0) as client:

        def run(script, keys, *args):
            return client.eval(script.text, len(keys), *keys, *args)

        def now():
            seconds, micros = client.time()
            return seconds * 1000 + micros // 1000

        yield SimpleNamespace(
            client=client,
            now=now,
            value=lambda: client.get(KEY),
            record=lambda: Record.parse(client.get(KEY)),
            ttl=lambda: client.pttl(KEY),
            claim=lambda token="mine", lease=LEASE, guard=GUARD, about=ABOUT, *more: run(
                CLAIM, (KEY, MARKER), token, lease, guard, RETENTION, about, 0, *more
            ),
            renew=lambda token="mine", lease=LEASE: run(RENEW, (KEY,), token, lease, RETENTION),
            fence=lambda token="mine": run(FENCE, (KEY,), token, 2 * BIG),
            abandon=lambda token="mine", state="free", reason="": run(ABANDON, (KEY,), token, state, RETENTION, reason),
            undo=lambda token="mine": run(UNDO, (KEY,), token),
            complete=lambda record: run(COMPLETE, (KEY,), record.text(), record.generation, RETENTION),
        )


def rec(state, token="", generation=0, fence=BIG, takeovers=0, deadline=0, tail="", message_id="before"):
    return Record(state, generation, fence, token, takeovers, deadline, "", message_id, tail)


def put(node, state):
    """Bring the key into a state of the table, on its way to being forgotten by the node; return its text."""
    now = node.now()
    record = {
        "none": None,
        "free": rec(State.FREE, takeovers=3),
        "failed": rec(State.FAILED, tail="no money left"),
        "forgotten": rec(State.FORGOTTEN, generation=1),
        "running": rec(State.RUNNING, "theirs", deadline=now + 20_000, takeovers=1),
        "overdue": rec(State.RUNNING, "theirs", deadline=now - 1, takeovers=1, tail="free 0 1 - 0 0 - x"),
        "mine": rec(State.RUNNING, "mine", deadline=now + 1_000, takeovers=1, tail="free 0 1 - 0 0 - x"),
        "mine overdue": rec(State.RUNNING, "mine", deadline=now - 1),
        "done": rec(State.DONE, "theirs", tail='{"a": [1, 2]}'),
    }[state]
    if record is None:
        return None
    node.client.set(KEY, record.text(), px=OLD_TTL)
    return record.text()


def assert_untouched(node, text):
    assert node.value() == text
    assert text is None or 0 < node.ttl() <= OLD_TTL


STATES = ["none", "free", "failed", "forgotten", "running", "overdue", "mine", "mine overdue", "done"]


# -- claim


@pytest.mark.parametrize(
    ("state", "takeovers"), [("none", 0), ("free", 0), ("failed", 0), ("forgotten", 0), ("overdue", 2)]
)
def test_claim_takes_what_nobody_runs(node, state, takeovers):
    """Running from now on, of the same generation, with the next fence, for the retention."""
    before = put(node, state)
    earlier = node.now()
    reply = node.claim()
    claimed = node.record()
    contested = int(state in ("free", "overdue"))  # their records say that a run was taken over once
    assert reply[:6] == [1, "records", claimed.generation, claimed.fence, takeovers, contested]
    assert (claimed.state, claimed.token, claimed.takeovers) == (State.RUNNING, "mine", takeovers)
    assert claimed.generation == (1 if state == "forgotten" else 0)
    assert earlier + LEASE <= claimed.deadline_ms <= node.now() + LEASE
    assert claimed.message_id == "message-1"
    assert OLD_TTL < node.ttl() <= RETENTION
    if before:
        assert claimed.fence == BIG + 1
    else:
        assert abs(claimed.fence / 1048576 - earlier / 1000) < 5.0


@pytest.mark.parametrize("state", ["free", "failed", "forgotten", "overdue", "none"])
def test_claim_remembers_what_was_there(node, state):
    """One record deep, so that it does not grow with each takeover."""
    before = put(node, state)
    node.claim()
    if state == "overdue":
        before = before.removesuffix(" free 0 1 - 0 0 - x")
    assert node.record().tail == (before or "")


def test_claim_of_a_running_key_is_busy(node):
    """The holder and the time left are told; nothing changes."""
    text = put(node, "running")
    refused, said, left, record, rights, _ = node.claim()
    assert (refused, said, record, rights) == (0, "busy", text, "records")
    assert 0 < left <= 20_000
    assert_untouched(node, text)


def test_claim_of_a_completed_key_is_told_so(node):
    """With the record, result and all; nothing changes."""
    text = put(node, "done")
    assert node.claim()[:4] == [0, "done", "records", text]
    assert_untouched(node, text)


def test_claim_that_asks_for_failures_is_told_of_one(node):
    """MG6: with the record, reason and all; nothing changes. Where nothing failed, it is a claim like others."""
    asking = ("mine", LEASE, GUARD, ABOUT, "failed")
    text = put(node, "failed")
    assert node.claim(*asking)[:4] == [0, "failed", "records", text]
    assert_untouched(node, text)
    node.client.set(KEY, rec(State.FAILED).text(), px=OLD_TTL)
    assert node.claim(*asking)[0] == 1
    for state in ("free", "forgotten", "overdue", "none"):
        put(node, state) or node.client.delete(KEY)
        assert node.claim(*asking)[0] == 1


def test_claim_that_meets_itself_has_no_second_vote(node):
    """Each attempt has a token of its own and asks each node once: this server is listed under two names."""
    text = put(node, "mine")
    with pytest.raises(redis.ResponseError, match="TWICE"):
        node.claim()
    assert_untouched(node, text)


@pytest.mark.parametrize("message_id", ["", "-", "a b", "%2D", "\x00", "ключ", "\U0001f600", "x" * 500])
def test_odd_message_ids_survive(node, message_id):
    """What Python wrote, the script parsed, formatted and handed back, Python reads."""
    node.claim(about=about_text("f00", message_id))
    node.abandon()
    node.claim(about=about_text("", ""))
    before = Record.parse(node.record().tail)
    assert (before.message_id, before.fingerprint) == (message_id, "f00")


# -- claims on nodes that may not vote


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("reason", ["new", "restarted", "max_ttl", "waiting"])
def test_node_that_may_not_vote_grants_nothing(node, reason, state):
    """It writes nothing, tells the generation that it knows, and still answers what is done."""
    text = put(node, state)
    lease = LEASE
    if reason == "new":
        node.client.delete(MARKER)
    elif reason == "max_ttl":
        lease = 30_001
    else:
        identity, since, *rest = node.client.get(MARKER).split()
        identity, since = ("f00", since) if reason == "restarted" else (identity, str(node.now()))
        node.client.set(MARKER, " ".join([identity, since, *rest]))
    reply = node.claim(lease=lease)
    if state == "done":
        assert reply[:4] == [0, "done", "leases", text]
    else:
        assert reply[:2] == [-1, reason]
        assert reply[-1] == (1 if state == "forgotten" else 0)
    assert_untouched(node, text)


def test_node_without_records_rights_says_so(node):
    """It grants leases and cannot speak for what it has forgotten."""
    node.client.set(MARKER, node.client.get(MARKER).replace("records", "leases"))
    assert node.claim()[:2] == [1, "leases"]
    assert node.claim(token="another")[4] == "leases"
    put(node, "done")
    assert node.claim()[2] == "leases"


def test_claim_without_a_guard_needs_no_marker(node):
    """The user switched it off."""
    node.client.delete(MARKER)
    assert node.claim(guard="0")[:2] == [1, "records"]


# -- renew


def test_renewal_moves_the_deadline_only(node):
    """The record lives for the retention again."""
    before = Record.parse(put(node, "mine"))
    earlier = node.now()
    assert node.renew() == [1]
    after = node.record()
    assert earlier + LEASE <= after.deadline_ms <= node.now() + LEASE
    assert Record.parse(node.value().replace(str(after.deadline_ms), str(before.deadline_ms), 1)) == before
    assert node.ttl() > OLD_TTL


def test_renewal_never_shortens(node):
    """A renewal that was long under way comes behind a longer one. It marks the claim as counted on."""
    before = put(node, "mine")
    for _ in range(2):
        assert node.renew(lease=1) == [1]
        assert node.value() == before.replace(" mine ", " mine+ ")


def test_overdue_claim_that_nobody_took_is_renewed(node):
    """By the node's clock it is late; whether it still counts is for its holder's clock to say."""
    put(node, "mine overdue")
    assert node.renew() == [1]
    assert node.record().deadline_ms > node.now()


NOT_MINE = [state for state in STATES if not state.startswith("mine")]


@pytest.mark.parametrize("state", NOT_MINE)
@pytest.mark.parametrize("command", ["renew", "abandon", "undo"])
def test_only_the_owner_moves_a_running_record(node, command, state):
    """Whoever lost the key leaves the next holder's record, or what was completed, alone."""
    text = put(node, state)
    reply = getattr(node, command)()
    assert reply == ([0] if command == "undo" else [0, text or ""])
    assert_untouched(node, text)


# -- abandon and undo


@pytest.mark.parametrize("state", ["mine", "mine overdue"])
@pytest.mark.parametrize(("to", "reason"), [("free", ""), ("failed", "no money left")])
def test_abandoned_key_is_free_at_once(node, state, to, reason):
    """Generation and fence stay, the owner goes, and the next claim is no takeover."""
    before = Record.parse(put(node, state))
    assert node.abandon(state=to, reason=reason) == [1]
    after = node.record()
    assert after == Record(State(to), 0, before.fence, "", before.takeovers, 0, "", before.message_id, reason)
    assert node.ttl() > OLD_TTL
    assert node.claim(token="next")[0] == 1
    assert node.record().takeovers == 0


@pytest.mark.parametrize("state", ["none", "free", "failed", "forgotten", "overdue"])
def test_undo_restores_what_was_there(node, state):
    """As if the claim had never been. It still ends one day."""
    before = put(node, state)
    node.claim()
    assert node.undo() == [1]
    assert node.value() == (before.removesuffix(" free 0 1 - 0 0 - x") if before else None)
    assert node.ttl() > 0 or before is None
    assert node.undo() == [0]


@pytest.mark.parametrize("step", ["renew", "fence"])
def test_undo_that_comes_late_leaves_a_claim_that_is_counted_on(node, step):
    """Other nodes won the attempt, and a majority of renewals includes this node by now."""
    node.claim()
    assert getattr(node, step)() == [1]
    text = node.value()
    assert node.undo() == [0]
    assert node.value() == text
    assert node.record().token == "mine"
    assert node.abandon() == [1]


def test_undo_behind_an_abandoned_claim_changes_nothing(node):
    """It comes late, and twice."""
    node.claim()
    node.abandon()
    text = node.value()
    assert node.undo() == [0]
    assert node.value() == text


def test_takeover_survives_an_undone_claim(node):
    """A claim that did not win does not hide how often the key was taken over."""
    put(node, "overdue")
    node.claim()
    node.undo()
    node.claim(token="next")
    assert node.record().takeovers == 2


# -- complete


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("done", "forgotten")])
def test_completion_is_true_whoever_holds_the_key(node, state):
    """Also when the lease was lost: what was done was done."""
    put(node, state)
    record = rec(State.DONE, "mine", tail='{"x": "a b"}')
    assert node.complete(record) == [1]
    assert node.record() == record
    assert OLD_TTL < node.ttl() <= RETENTION


def test_completion_that_stands_is_kept(node):
    """And answered, so that it becomes the second run's result; it does not live longer for it."""
    text = put(node, "done")
    assert node.complete(rec(State.DONE, "mine", tail="1")) == [0, "done", text]
    assert_untouched(node, text)
    assert node.complete(Record.parse(text)) == [1]
    assert_untouched(node, text)


def test_completion_replaces_one_of_a_lower_generation(node):
    """The key was forgotten in between, on other nodes."""
    put(node, "done")
    record = rec(State.DONE, "mine", generation=1)
    assert node.complete(record) == [1]


@pytest.mark.parametrize("state", [State.FORGOTTEN, State.RUNNING, State.DONE, State.FREE])
def test_completion_of_a_forgotten_generation_is_dropped(node, state):
    """It completes a key that somebody has forgotten since."""
    text = rec(state, generation=2).text()
    node.client.set(KEY, text, px=OLD_TTL)
    assert node.complete(rec(State.DONE, "mine", generation=1)) == [0, "gone", text]
    assert_untouched(node, text)


def test_completion_of_the_tombstones_generation_counts(node):
    """The run began after the key was forgotten."""
    put(node, "forgotten")
    assert node.complete(rec(State.DONE, "mine", generation=1))[0] == 1


# -- what is no record


@pytest.mark.parametrize("value", ["x", "", "running", "running 0 1 t 0 0 -", "done 0 x t 0 0 - m", "{}"])
def test_foreign_value_is_an_error_and_stays(node, value):
    """Neither free nor ours to overwrite."""
    node.client.set(KEY, value, px=OLD_TTL)
    for command in (node.claim, node.renew, node.abandon, lambda: node.complete(rec(State.DONE))):
        with pytest.raises(redis.ResponseError, match="FOREIGN"):
            command()
    assert node.undo() == [0]
    assert_untouched(node, value)


def test_value_of_another_type_is_an_error_and_stays(node):
    """A list under our key is somebody's."""
    node.client.rpush(KEY, "x")
    for command in (node.claim, node.renew, node.abandon, node.undo, lambda: node.complete(rec(State.DONE))):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            command()
    assert node.client.lrange(KEY, 0, -1) == ["x"]


def test_foreign_marker_is_an_error(node):
    """Neither new nor restarted: somebody else writes there."""
    node.client.set(MARKER, "hello")
    with pytest.raises(redis.ResponseError, match="FOREIGN"):
        node.claim()
    assert node.value() is None


def test_numbers_beyond_32_bits_survive(node):
    """Lua's own conversions would round a fence of 16 digits."""
    node.client.set(KEY, rec(State.FREE, fence=2**53 - 2).text(), px=OLD_TTL)
    node.claim()
    assert node.record().fence == 2**53 - 1
    node.renew()
    node.abandon()
    assert node.record().fence == 2**53 - 1
