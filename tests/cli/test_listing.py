"""`ls`: what the keys are, by what all nodes have."""

from __future__ import annotations

import time

import pytest

from dramatiq_idem.record import State
from tests.cli.conftest import FENCE, rec


def states(bench, *arguments, **options):
    return {each["name"]: each["state"] for each in bench.json("ls", *arguments, **options)["records"]}


def test_each_state_is_named(bench):
    bench.claim("a:running")
    bench.done("a:done")
    bench.failed("a:failed")
    bench.failed("a:orphaned", "orphaned: an earlier run ended with its lease and may have taken effect")
    bench.failed("a:exhausted", "6 runs ended with their lease (max_takeovers is 5)")
    bench.claim("a:overdue", lease_ms=100)
    bench.store.abandon(bench.claim("a:free"), State.FREE, "")
    bench.store.forget("a:forgotten", 60_000)
    bench.put(1, "a:foreign", "hello")
    time.sleep(0.11)
    assert states(bench) == {
        "a:running": "running",
        "a:done": "done",
        "a:failed": "failed",
        "a:orphaned": "orphaned",
        "a:exhausted": "orphaned",
        "a:overdue": "orphaned",
        "a:free": "free",
        "a:forgotten": "forgotten",
        "a:foreign": "foreign",
    }
    assert set(states(bench, "--state", "orphaned")) == {"a:orphaned", "a:exhausted", "a:overdue"}
    assert set(states(bench, "--state", "done", "--state", "running")) == {"a:done", "a:running"}
    assert set(states(bench, "--state", "foreign")) == {"a:foreign"}


RUNNING = {"deadline_ms": 2**50}


@pytest.mark.parametrize(
    ("records", "state", "on"),
    [
        pytest.param([rec(State.DONE), rec(State.RUNNING, **RUNNING), None], "done", 1, id="done over running"),
        pytest.param([rec(State.RUNNING, **RUNNING), rec(State.FREE), rec(State.FREE)], "running", 1, id="over free"),
        pytest.param(
            [rec(State.DONE), rec(State.DONE), rec(State.FORGOTTEN, generation=1)], "forgotten", 1, id="newer"
        ),
        pytest.param([rec(State.DONE), rec(State.DONE, token="u"), rec(State.DONE)], "done", 2, id="two completions"),
        pytest.param([rec(State.RUNNING), rec(State.RUNNING, **RUNNING), None], "running", 1, id="one lease is left"),
        pytest.param([rec(State.FREE), None, None], "free", 1, id="on one node"),
        pytest.param(["hello", rec(State.DONE), rec(State.DONE)], "done", 2, id="foreign on one"),
    ],
)
def test_nodes_that_differ_are_brought_together_as_a_claim_does_it(bench, records, state, on):
    for index, record in enumerate(records):
        bench.put(index, "a:k", record)
    (found,) = bench.json("ls")["records"]
    assert (found["state"], found["on"], found["of"]) == (state, on, 3)
    assert [each["state"] for each in bench.json("ls", "--state", state)["records"]] == [state]
    others = sorted({"done", "running", "free", "forgotten", "orphaned"} - {state})
    assert bench.json("ls", *(word for other in others for word in ("--state", other)))["records"] == []
    assert f"{on}/3" in bench.run("ls").out


def test_filters(bench):
    """By actor, whose name has no meaning to SCAN; by pattern; by age since the first claim; and so many at most."""
    for name in ("pay:1", "pay:2", "pay2:1", "p?y:1"):
        bench.done(name)
    old = bench.now() // 1000 - 3600
    bench.put(0, "pay:old", rec(State.DONE, fence=old * FENCE + 3))
    bench.put(0, "pay:ageless", rec(State.DONE, fence=0))
    assert set(states(bench, "--actor", "pay")) == {"pay:1", "pay:2", "pay:old", "pay:ageless"}
    assert set(states(bench, "--actor", "p?y")) == {"p?y:1"}
    assert set(states(bench, "p?y:1")) == {"pay:1", "p?y:1"}
    assert set(states(bench, "--actor", "pay", "[12]")) == {"pay:1", "pay:2"}
    assert set(states(bench, "--older-than", "59m")) == {"pay:old"}
    assert set(states(bench, "--older-than", "61m")) == set()
    assert bench.json("ls", "--older-than", "59m")["records"][0]["age"] == pytest.approx(3600, abs=5)
    limited = bench.json("ls", "--limit", "2")
    assert len(limited["records"]) == 2
    assert limited["has_more"]
    assert not bench.json("ls", "--limit", "6")["has_more"]
    assert len(bench.json("ls", "--limit", "0")["records"]) == 6


def test_each_key_is_listed_once_among_many(bench):
    for index in range(3):
        with bench.client(index) as client, client.pipeline() as pipeline:
            for number in range(index * 300, index * 300 + 900):
                pipeline.set(f"idem:record:a:{number}", rec(State.DONE).text(), px=60_000)
            pipeline.execute()
    found = [each["name"] for each in bench.json("ls", "--limit", "0")["records"]]
    assert sorted(found) == sorted(f"a:{number}" for number in range(1500))


def test_keys_command_is_not_used(bench):
    bench.done("a:k")
    with bench.client(0) as client:
        before = client.info("commandstats").get("cmdstat_keys", {}).get("calls", 0)
        bench.run("ls")
        bench.run("watch", "--once")
        assert client.info("commandstats").get("cmdstat_keys", {}).get("calls", 0) == before


def test_names_cannot_reach_the_terminal_or_the_markup(bench):
    bench.done("a:\x1b[31m[red]x[/red]\n\u202e😀")
    outcome = bench.run("ls")
    assert "a:\\x1b[31m[red]x[/red]\\n\\u202e😀" in outcome.out
    assert "\x1b" not in outcome.out
    assert set(states(bench)) == {"a:\x1b[31m[red]x[/red]\n\u202e😀"}


def test_namespaces_do_not_meet(bench, make_bench):
    """ME14: the same keys under two prefixes, of which one begins like the other."""
    other = make_bench(bench.nodes, namespace="idem2")
    bench.done("a*")
    other.put(0, "record:x", rec(State.FREE))
    assert states(bench)["a*"] == "done"
    assert states(bench, "--namespace", "idem2") == {"record:x": "free"}
    assert states(bench, "--namespace", "ide?") == {}


def test_one_node_down_is_said_and_two_are_too_few(fragile):
    fragile.done("a:k")
    fragile.nodes[1].kill()
    found = fragile.json("ls")
    assert found["records"][0]["on"] == 2
    assert list(found["unread"]) == [f"127.0.0.1:{fragile.nodes[1].port}/0"]
    assert "could not be read to the end" in fragile.run("ls").out
    fragile.nodes[2].kill()
    outcome = fragile.run("ls", "--json", "--timeout", "0.5")
    assert outcome.status == 3
    assert outcome.json["records"][0]["on"] == 1
    assert "only 1 of 3 nodes answered, 2 are needed" in outcome.err
    assert str(fragile.nodes[2].port) in outcome.err


def test_a_node_that_refuses_the_password_is_named_without_it(guarded):
    guarded.put(0, "a:k", rec(State.DONE))
    outcome = guarded.run("ls", "--json")
    assert outcome.status == 0
    (cause,) = outcome.json["unread"].values()
    assert "WRONGPASS" in cause or "password" in cause
    assert "hunter2" not in outcome.out + outcome.err + guarded.run("ls").out


def test_ls_and_doctor_change_nothing(bench):
    """MG5: what is recorded stays, whatever looks at it; a duplicate is skipped as before."""
    bench.done("a:done")
    bench.claim("a:orphaned", lease_ms=100)
    time.sleep(0.11)
    bench.failed("a:failed")
    before = bench.contents()
    for command in ("ls", "doctor", "watch --once", "show a:done", "show a:orphaned", "repair", "forget a* --dry-run"):
        assert bench.run(*command.split()).status == 0, command
    assert bench.contents() == before
    assert bench.json("show", "a:done")["would"]["action"] == "skip"
