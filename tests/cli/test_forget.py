"""`forget`: on all nodes or not at all, never what runs, and by pattern only what was seen before."""

from __future__ import annotations

import time

import pytest

from dramatiq_idem.record import State
from tests.cli.conftest import rec


def states(bench, **options):
    return {each["name"]: each["state"] for each in bench.json("ls", "--limit", "0", **options)["records"]}


def test_message_runs_again_after_its_key_was_forgotten(bench, workbench):
    """MB6, the last part: dead-lettered as an orphan, run on a person's word."""
    jobs = workbench(bench.urls, on_orphan="dead_letter")
    job = jobs.job()
    message = job.message(1)
    name = f"job:{message.message_id}"
    bench.claim(name, "", lease_ms=100)  # a worker that died in the body
    time.sleep(0.11)
    jobs.start()
    jobs.broker.enqueue(message)
    jobs.join()
    assert (jobs.starts(), jobs.dead_letters) == (0, 1)
    assert states(bench) == {name: "orphaned"}
    forgotten = bench.json("forget", "--actor", "job", message.message_id)
    assert forgotten["forgotten"] == [{"name": name, "generation": 1}]
    jobs.broker.enqueue(message.copy())
    jobs.join()
    assert jobs.starts() == 1
    assert states(bench) == {name: "done"}


def test_generation_grows_and_is_printed(bench):
    bench.done("a:1")
    bench.done("a:2")
    outcome = bench.run("forget", "a:1", "a:2")
    assert outcome.status == 0
    assert "a:1: forgotten, generation 1" in outcome.out
    assert bench.json("forget", "a:1", "a:3")["forgotten"] == [
        {"name": "a:1", "generation": 2},
        {"name": "a:3", "generation": 1},
    ]
    assert bench.json("show", "a:1")["on"] == 3


def test_what_runs_is_refused_and_then_nothing_is_forgotten(bench):
    bench.done("a:done")
    bench.claim("a:running")
    outcome = bench.run("forget", "a:done", "a:running")
    assert outcome.status == 1
    assert "'a:running' is running" in outcome.err
    assert states(bench) == {"a:done": "done", "a:running": "running"}
    assert bench.json("forget", "a:running", status=1)["error"].startswith("nothing is forgotten")
    assert bench.json("forget", "a:running", "--force")["forgotten"][0]["generation"] == 1
    assert states(bench) == {"a:done": "done", "a:running": "forgotten"}


def test_a_run_that_only_one_node_knows_of_is_refused_too(bench):
    bench.put(1, "a:k", rec(State.RUNNING, deadline_ms=bench.now(1) + 60_000))
    bench.put(0, "a:k", rec(State.DONE))
    assert bench.run("forget", "a:k").status == 1
    assert states(bench) == {"a:k": "done"}


def test_a_completion_that_lives_longer_is_outlived(bench):
    bench.put(0, "a:k", rec(State.DONE), ttl_ms=400_000_000)
    bench.json("forget", "a:k")
    with bench.client(2) as client:
        assert client.pttl("idem:record:a:k") > 399_000_000


def test_one_node_down_is_named_and_nothing_is_forgotten(fragile):
    fragile.done("a:k")
    fragile.nodes[2].kill()
    for arguments in (["a:k"], ["a:k", "--force"], ["a*", "--dry-run"], ["a*", "--confirm", "0"]):
        outcome = fragile.run("forget", *arguments)
        assert outcome.status == 3, outcome
        assert f"127.0.0.1:{fragile.nodes[2].port}/0" in outcome.err
        assert len(outcome.err.splitlines()) == 1
    assert fragile.json("show", "a:k")["state"] == "done"
    assert fragile.json("forget", "a:k", status=3)["status"] == 3


def test_foreign_data_is_not_forgotten(bench):
    bench.put(1, "a:k", "hello")
    outcome = bench.run("forget", "a:k")
    assert outcome.status == 1
    assert "is no record" in outcome.err
    assert f"{bench.nodes[1].port}" in outcome.err
    assert bench.contents()[1]["idem:record:a:k"] == "hello"


# -- patterns


NAMES = ["a", "a*", "a:{}", "a:😀", "a\\x", "ab", "b", "b*", ":a"]


def test_pattern_forgets_only_what_the_dry_run_listed(bench, make_bench):
    """ME14: stars, braces and emoji in keys, two namespaces on the same nodes."""
    other = make_bench(bench.nodes, namespace="other")
    for name in NAMES:
        bench.done(name)
        for index in range(3):
            other.put(index, name, rec(State.DONE))
    refused = bench.run("forget", "a*")
    assert refused.status == 2
    assert "pattern" in refused.err
    listed = bench.json("forget", "a*", "--dry-run")
    assert [each["name"] for each in listed["would_forget"]] == sorted(name for name in NAMES if name.startswith("a"))
    assert set(states(bench).values()) == {"done"}
    wrong = bench.run("forget", "a*", "--confirm", "0" * 12)
    assert wrong.status == 1
    assert set(states(bench).values()) == {"done"}
    done = bench.json("forget", "a*", "--confirm", listed["confirm"])
    assert [each["name"] for each in done["forgotten"]] == [each["name"] for each in listed["would_forget"]]
    assert states(bench) == {name: "forgotten" if name.startswith("a") else "done" for name in NAMES}
    elsewhere = bench.json("ls", "--namespace", "other")["records"]
    assert {each["name"]: each["state"] for each in elsewhere} == dict.fromkeys(NAMES, "done")
    assert bench.json("forget", "a*", "--dry-run")["would_forget"] == [], "what is forgotten everywhere needs no more"


def test_what_came_after_the_dry_run_is_safe(bench):
    """A new key, another completion, another generation: the code does not fit any more, and nothing is forgotten."""
    bench.done("a:1")
    bench.failed("a:2")
    code = bench.json("forget", "a*", "--dry-run")["confirm"]
    assert bench.json("forget", "a*", "--dry-run")["confirm"] == code
    bench.done("a:3")
    assert bench.run("forget", "a*", "--confirm", code).status == 1
    code = bench.json("forget", "a*", "--dry-run")["confirm"]
    bench.done("a:2")
    assert bench.run("forget", "a*", "--confirm", code).status == 1
    assert set(states(bench).values()) == {"done"}
    code = bench.json("forget", "a*", "--dry-run")["confirm"]
    assert bench.run("forget", "a*", "--confirm", code, "--namespace", "other").status == 1
    assert bench.run("forget", "a*", "--confirm", code).status == 0


def test_a_pattern_leaves_alone_what_runs(bench):
    bench.done("a:1")
    bench.claim("a:2")
    listed = bench.json("forget", "a:*", "--dry-run")
    assert listed["running"] == ["a:2"]
    assert "running, left alone" in bench.run("forget", "a:*", "--dry-run").out
    outcome = bench.run("forget", "a:*", "--confirm", listed["confirm"])
    assert outcome.status == 0
    assert "a:2: left alone, it is running" in outcome.out
    assert states(bench) == {"a:1": "forgotten", "a:2": "running"}
    forced = bench.json("forget", "a:*", "--dry-run", "--force")
    assert [each["name"] for each in forced["would_forget"]] == ["a:2"]
    bench.json("forget", "a:*", "--force", "--confirm", forced["confirm"])
    assert states(bench)["a:2"] == "forgotten"


@pytest.mark.parametrize(("arguments", "forgotten"), [(["--exact", "a*"], "a*"), (["a\\*"], "a*")], ids=str)
def test_a_star_can_be_meant(bench, arguments, forgotten):
    bench.done("a*")
    bench.done("ab")
    more = [] if "--exact" in arguments else ["--confirm", bench.json("forget", *arguments, "--dry-run")["confirm"]]
    assert bench.json("forget", *arguments, *more)["forgotten"] == [{"name": forgotten, "generation": 1}]
    assert states(bench) == {"a*": "forgotten", "ab": "done"}


def test_dry_run_of_names_and_patterns_of_one_actor(bench):
    bench.done("p%3Ay:1")
    bench.done("p%3Ay:2")
    bench.done("q:1")
    listed = bench.json("forget", "--actor", "p:y", "1", "?", "--dry-run")
    assert [each["name"] for each in listed["would_forget"]] == ["p%3Ay:1", "p%3Ay:2"]
    assert f"--confirm {listed['confirm']}" in bench.run("forget", "--actor", "p:y", "1", "?", "--dry-run").out
