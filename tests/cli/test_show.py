"""`show`: one key on every node, and what a message of it would meet."""

from __future__ import annotations

import time

import pytest

from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.command.view import Kind, kind_of
from dramatiq_idem.judgement import Busy, Completed, Failed, Unavailable
from dramatiq_idem.policies import Policy
from dramatiq_idem.record import State
from dramatiq_idem.verdict import Refuse, decide
from tests.cli.conftest import FENCE, rec

SAME = ("state", "generation", "takeovers", "message", "token", "result", "fingerprint", "fence", "may_speak_for")


def test_show_prints_the_same_for_every_node(bench):
    """MI1: state, holder and age of what a duplicate meets, found by the key alone, on whatever node."""
    bench.claim("pay:order-1", "message-7", lease_ms=25_000)
    found = bench.json("show", "pay:order-1")
    assert found["differs"] == []
    assert (found["state"], found["message_id"], found["on"]) == ("running", "message-7", 3)
    assert 20 < found["lease_left"] <= 25
    assert 0 <= found["age"] < 5
    rows = [{name: node.get(name) for name in SAME if name != "fence"} for node in found["nodes"]]
    assert rows[0] == rows[1] == rows[2]
    assert all(abs(node["age"] - found["age"]) < 1.5 for node in found["nodes"])
    alone = [bench.json("show", "pay:order-1", urls=[url]) for url in bench.urls]
    assert [each["nodes"][0]["token"] for each in alone] == [rows[0]["token"]] * 3
    assert {each["would"]["action"] for each in alone} == {"busy"} == {found["would"]["action"]}


def test_differences_are_marked(bench):
    bench.put(0, "a:k", rec(State.DONE, tail='{"a": [1, "\x7f"]}', message_id="m1"))
    bench.put(1, "a:k", rec(State.DONE, tail="7", message_id="m2", takeovers=1))
    outcome = bench.run("show", "a:k")
    assert outcome.status == 0
    marked = [line.split()[0] for line in outcome.out.splitlines() if line.rstrip().endswith("differs")]
    assert {"state", "message", "result", "takeovers"} <= set(marked)
    assert not {"ttl", "generation", "token"} & set(marked)
    assert '"a": [' in outcome.out
    assert "\x7f" not in outcome.out
    found = bench.json("show", "a:k")
    assert found["differs"] == ["state", "takeovers", "message", "result"]
    assert [node["state"] for node in found["nodes"]] == ["done", "done", "none"]
    assert found["nodes"][0]["result"] == {"a": [1, "\x7f"]}
    assert 50 < found["ttl_left"] <= 60


def test_name_is_built_for_an_actor(bench):
    bench.done("p%3Ay:a:b")
    assert bench.json("show", "--actor", "p:y", "a:b")["name"] == "p%3Ay:a:b"
    assert bench.json("show", "--actor", "p:y", "a:b")["state"] == "done"
    assert bench.json("show", "p%3Ay:a:b")["state"] == "done"


def test_unknown_key_has_a_status_of_its_own(bench):
    found = bench.json("show", "a:nothing", status=1)
    assert (found["state"], found["on"], found["would"]["action"]) == ("none", 0, "run")
    assert bench.run("show", "a:nothing").status == 1


@pytest.mark.parametrize("key", ["", "\udcff", "x" * 5000], ids=["empty", "no UTF-8", "too long"])
def test_what_can_be_no_key_is_wrong_usage(bench, key):
    outcome = bench.run("show", key)
    assert outcome.status == 2
    assert "KEY must" in outcome.err


# -- what the middleware would do


def cases(now):
    """Return what stands on three nodes, by name."""
    live, over = now + 60_000, now - 1
    return {
        "nothing": [None, None, None],
        "free": [rec(State.FREE), rec(State.FREE), None],
        "failed": [rec(State.FAILED, tail="why")] * 3,
        "failed on one": [rec(State.FAILED, tail="why"), None, None],
        "failed on one, done before": [
            rec(State.FAILED, generation=1, tail="why"),
            rec(State.DONE),
            rec(State.FAILED, tail="old"),
        ],
        "failed before": [rec(State.FAILED, tail="old")] * 2 + [rec(State.FORGOTTEN, generation=1)],
        "forgotten": [rec(State.FORGOTTEN, generation=2)] * 3,
        "running": [rec(State.RUNNING, deadline_ms=live)] * 3,
        "running on two": [rec(State.RUNNING, deadline_ms=live)] * 2 + [None],
        "running on one": [rec(State.RUNNING, deadline_ms=live), None, None],
        "overdue": [rec(State.RUNNING, deadline_ms=over, takeovers=2)] * 3,
        "overdue on one": [rec(State.RUNNING, deadline_ms=over), None, None],
        "done": [rec(State.DONE, tail="1")] * 3,
        "done on one": [rec(State.DONE, tail="1"), None, None],
        "done twice": [rec(State.DONE, tail="1"), rec(State.DONE, tail="2", token="u"), None],
        "done and running": [rec(State.DONE), rec(State.RUNNING, deadline_ms=live), None],
        "forgotten on one": [rec(State.DONE), rec(State.DONE), rec(State.FORGOTTEN, generation=1)],
        "forgotten, running": [rec(State.RUNNING, deadline_ms=live)] * 2 + [rec(State.FORGOTTEN, generation=1)],
        "foreign on one": ["hello", None, None],
        "foreign on two": ["hello", "hello", None],
        "foreign and done": ["hello", rec(State.DONE), None],
    }


@pytest.mark.parametrize("name", list(cases(0)))
def test_preview_is_what_a_claim_then_gets(bench, name):
    """The preview rests on rules that stand in a script too: both must say the same, in whatever state."""
    for index, record in enumerate(cases(bench.now())[name]):
        bench.put(index, "a:k", record)
    before = bench.contents()
    would = bench.json("show", "a:k", status=1 if name == "nothing" else 0)["would"]
    assert bench.contents() == before
    request = ClaimRequest("a:k", "m9", "", 5_000, 60_000)
    asking = bench.store.claim(request._replace(replays_failures=True))
    assert isinstance(asking, Failed) == ("failed for good" in would["detail"])
    outcome = bench.store.claim(request) if isinstance(asking, Failed) else asking
    assert would["action"] == {Claim: "run", Completed: "skip", Busy: "busy", Unavailable: "no quorum"}[type(outcome)]


def test_details_of_the_preview(bench):
    now = bench.now()
    bench.put(0, "a:busy", rec(State.RUNNING, deadline_ms=now + 60_000, message_id="m5"))
    bench.put(1, "a:busy", rec(State.RUNNING, deadline_ms=now + 60_000, message_id="m5"))
    assert "message m5 runs it" in bench.json("show", "a:busy")["would"]["detail"]
    bench.claim("a:orphaned", lease_ms=100)
    time.sleep(0.11)
    assert "takeover 1" in bench.json("show", "a:orphaned")["would"]["detail"]
    bench.put(0, "a:few", rec(State.DONE, message_id="m6"))
    assert "put on enough nodes" in bench.json("show", "a:few")["would"]["detail"]


def test_new_nodes_have_no_quorum_yet(local_nodes, make_bench):
    bench = make_bench(local_nodes(3))
    found = bench.json("show", "a:k", status=1)["would"]
    assert found["action"] == "no quorum"
    assert "the first claim admits" in found["detail"]
    assert bench.json("show", "a:k", "--no-restart-guard", status=1)["would"]["action"] == "run"
    assert bench.contents() == [{}, {}, {}]


def test_nodes_that_wait_or_forgot_cannot_say_that_nothing_is_there(fragile):
    with fragile.client(0) as zero, fragile.client(1) as one:
        zero.set("idem:marker", zero.get("idem:marker").replace(" records ", " leases "))
        identity, _, rest = one.get("idem:marker").split(" ", 2)
        one.set("idem:marker", f"{identity} {fragile.now(1)} {rest}")
    would = fragile.json("show", "a:k", status=1)["would"]
    assert would["action"] == "no quorum"
    assert "has forgotten records" in would["detail"]
    assert "waiting" in would["detail"]


def test_nodes_that_are_down(fragile):
    fragile.done("a:k")
    fragile.nodes[0].kill()
    found = fragile.json("show", "a:k")
    assert [node["answered"] for node in found["nodes"]] == [False, True, True]
    assert found["nodes"][0]["state"] is None
    assert found["would"]["action"] == "skip"
    fragile.nodes[1].kill()
    outcome = fragile.run("show", "a:k", "--json", "--timeout", "0.5")
    assert outcome.status == 3
    assert outcome.json["nodes"][2]["state"] == "done"
    assert "only 1 of 3" in outcome.err
    assert "no answer" in fragile.run("show", "a:k", "--timeout", "0.5").out


def test_foreign_data_is_shown_as_such(bench):
    bench.put(0, "a:k", "hello")
    with bench.client(1) as client:
        client.rpush("idem:record:a:k", "x")
    found = bench.json("show", "a:k")
    assert [node["state"] for node in found["nodes"]] == ["foreign", "foreign", "none"]
    assert found["would"]["action"] == "no quorum"


# -- what is called orphaned


@pytest.mark.parametrize("rules", [{"on_orphan": "dead_letter"}, {"max_takeovers": 1}], ids=str)
def test_reasons_of_the_middleware_are_recognised(rules):
    """The reason is text: what the middleware writes must be what the command looks for."""

    class Rules:
        policy = Policy(**rules)
        key, name, fingerprint, is_own_id = "k", "a:k", "", False

    claimed = rec(State.RUNNING, takeovers=2)
    action = decide(Claim(None, claimed, None), Rules, "m1", is_result_wanted=False)
    assert isinstance(action, Refuse)
    assert kind_of(rec(State.FAILED, tail=str(action.error)), 0) is Kind.ORPHANED
    assert claimed.fence % FENCE == 0
