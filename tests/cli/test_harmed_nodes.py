"""Every command on nodes that are down, that hang, that refuse and that hold other people's data."""

from __future__ import annotations

import pytest
import redis

from dramatiq_idem.record import State
from tests.cli.conftest import rec

COMMANDS = {
    "doctor": ["doctor"],
    "ls": ["ls"],
    "show": ["show", "a:k"],
    "forget": ["forget", "a:k"],
    "forget --dry-run": ["forget", "a:*", "--dry-run"],
    "repair": ["repair"],
    "watch": ["watch", "--once"],
}


def kill(bench, index):
    bench.nodes[index].kill()


def pause(bench, index):
    bench.nodes[index].pause()


def password(bench, index):
    with bench.client(index) as client:
        client.config_set("requirepass", "right")
    bench.urls[index] = bench.urls[index].replace("//", "//:hunter2@")


def rights(bench, index):
    """Let it refuse our scripts: its user may do nothing else than ask who it is."""
    with bench.client(index) as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">hunter2", "~*", "+ping", "+info")
    bench.urls[index] = bench.urls[index].replace("//", "//app:hunter2@")


def replica(bench, index):
    """Make it a copy of a server that is none of the nodes, and nowhere."""
    with bench.client(index) as client:
        client.replicaof("127.0.0.1", "1")


HARMS = {"down": kill, "hangs": pause, "wrong password": password, "no rights": rights, "replica": replica}
ONE = {"doctor": 20, "ls": 0, "show": 0, "forget": 3, "forget --dry-run": 3, "repair": 1, "watch": 0}
"""Status while one of three nodes cannot be used: what needs all nodes is not done, the rest is."""
TWO = dict.fromkeys(COMMANDS, 3) | {"doctor": 20}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("harm", HARMS)
def test_one_node_that_cannot_be_used_is_named(fragile, harm, command):
    fragile.done("a:k")
    HARMS[harm](fragile, 1)
    outcome = fragile.run(*COMMANDS[command], "--timeout", "0.4")
    assert outcome.status == ONE[command], outcome
    shown = outcome.out + outcome.err
    assert f"127.0.0.1:{fragile.nodes[1].port}/0" in shown
    assert "hunter2" not in shown
    if outcome.status in (1, 3):
        assert len(outcome.err.splitlines()) == 1
        assert str(fragile.nodes[0].port) not in outcome.err, "a healthy node is blamed"
    if harm == "hangs":
        fragile.nodes[1].resume()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("harm", ["down", "no rights"])
def test_without_a_majority_the_status_says_so(fragile, harm, command):
    fragile.done("a:k")
    for index in (0, 2):
        HARMS[harm](fragile, index)
    outcome = fragile.run(*COMMANDS[command], "--timeout", "0.4", "--json")
    assert outcome.status == TWO[command], outcome
    assert outcome.json
    assert "hunter2" not in outcome.out + outcome.err
    assert all(f"127.0.0.1:{fragile.nodes[index].port}/0" in outcome.out + outcome.err for index in (0, 2))


def test_nothing_found_is_not_said_of_nodes_that_cannot_be_read(fragile):
    for node in fragile.nodes:
        node.kill()
    outcome = fragile.run("ls", "--timeout", "0.4")
    assert outcome.status == 3
    assert "no such record" not in outcome.out


# -- what other people put there


def as_hash(client, key):
    client.hset(key, "field", "value")


def as_list(client, key):
    client.rpush(key, "value")


def as_stream(client, key):
    client.xadd(key, {"field": "value"})


def as_garbage(client, key):
    client.set(key, b"\xff\xfe\x00 not UTF-8")


def as_megabytes(client, key):
    client.set(key, "x" * 5_000_000)


def as_almost_a_record(client, key):
    client.set(key, "running -1 0 token 0 0 - m1")


def as_huge_numbers(client, key):
    client.set(key, f"done {10**30} 0 token 0 0 - m1")


KINDS = [as_hash, as_list, as_stream, as_garbage, as_megabytes, as_almost_a_record, as_huge_numbers]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def foreign(request, fragile):
    """Nodes that have a record; the first has something else under two more keys, under one of them for ever."""
    fragile.done("a:k")
    with fragile.client(0) as client:
        for name in ("a:foreign", "a:fading"):
            request.param(client, f"idem:record:{name}")
        client.expire("idem:record:a:fading", 60)
    return fragile


def test_foreign_data_is_told_by_every_command_and_left_alone(foreign):
    with redis.Redis.from_url(foreign.nodes.urls[0]) as client:
        before = client.dump("idem:record:a:foreign")
        listed = {each["name"]: (each["state"], each["on"]) for each in foreign.json("ls")["records"]}
        assert listed == {"a:k": ("done", 3), "a:foreign": ("foreign", 1), "a:fading": ("foreign", 1)}
        assert foreign.json("watch", "--once")["sample"]["states"]["foreign"] == 2
        shown = foreign.json("show", "a:foreign")
        assert [node["state"] for node in shown["nodes"]] == ["foreign", "none", "none"]
        refused = foreign.run("forget", "a:foreign", "--force")
        assert refused.status == 1
        assert f"127.0.0.1:{foreign.nodes[0].port}/0" in refused.err
        assert len(refused.err.splitlines()) == 1
        assert foreign.run("forget", "a:*", "--dry-run").status == 1
        assert foreign.run("repair").status == 0
        assert foreign.run("doctor").status == 0
        assert client.dump("idem:record:a:foreign") == before
    assert foreign.json("show", "a:k")["state"] == "done"


MARKER = {"doctor": 20, "ls": 0, "show": 0, "forget": 0, "forget --dry-run": 0, "repair": 1, "watch": 0}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", [as_hash, as_garbage], ids=lambda kind: kind.__name__)
def test_a_foreign_marker_is_told_and_hides_no_record(fragile, kind, command):
    fragile.done("a:k")
    with fragile.client(1) as client:
        client.delete("idem:marker")
        kind(client, "idem:marker")
    outcome = fragile.run(*COMMANDS[command])
    assert outcome.status == MARKER[command], outcome
    if command == "doctor":
        assert "its marker is none of ours" in outcome.out
    if command == "repair":
        assert f"127.0.0.1:{fragile.nodes[1].port}/0: its marker is none of ours" in outcome.err
    if command == "show":
        assert [node["state"] for node in fragile.json("show", "a:k")["nodes"]] == ["done"] * 3
    if command == "watch":
        assert "foreign" in outcome.out.splitlines()[4]


def test_a_record_is_listed_even_if_somebody_made_it_stay(fragile):
    """A claim reads it like any other; so nobody should search for it in vain."""
    fragile.put(0, "a:k", rec(State.DONE))
    with fragile.client(0) as client:
        client.persist("idem:record:a:k")
    (found,) = fragile.json("ls")["records"]
    assert (found["name"], found["state"], found["ttl_left"]) == ("a:k", "done", None)
