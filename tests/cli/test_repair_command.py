"""`repair`: what it does, what it refuses, and whether its status tells the truth."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time

import pytest

from dramatiq_idem.claim import Claim, ClaimRequest
from redlock import QuorumUnreachableError, Redlock
from tests.tools.peek import ROOT
from tests.tools.workbench import wait_until

MAX_TTL = 0.5


@pytest.fixture
def short(local_nodes, make_bench):
    """Three nodes whose wait is short, and that nobody repairs by himself."""
    nodes = local_nodes(3)
    locks = Redlock(nodes.urls, namespace="idem", max_ttl=MAX_TTL)
    locks.bootstrap()
    locks.close()
    return make_bench(nodes)


def forget_all(bench, index):
    """Let a node forget, and be met by a lease: it votes again, and may not speak for the records."""
    with bench.client(index) as client:
        client.flushall()
    meet(bench)


def meet(bench):
    locks = Redlock(bench.urls, 0.2, namespace="idem", max_ttl=MAX_TTL, observer=lambda event: None)

    def is_met():
        with contextlib.suppress(QuorumUnreachableError):
            locks.acquire("x", ttl=0.2).release()
        nodes = bench.run("doctor", "--json").json["nodes"]
        standings = [node["marker"]["standing"] for node in nodes]
        return not {"new", "restarted"} & set(standings)

    wait_until(is_met)
    locks.close()


def done(bench, name):
    claim = bench.store.claim(ClaimRequest(name, "m1", "", 300, 60_000))
    assert isinstance(claim, Claim)
    assert bench.store.complete(claim, "1")


def test_nothing_to_repair(bench):
    outcome = bench.run("repair")
    assert outcome.status == 0
    assert "all nodes may speak" in outcome.out
    assert bench.json("repair")["all_speak"]


def test_a_node_that_forgot_gets_its_records_back(short):
    for number in range(300):
        done(short, f"a:{number}")
    forget_all(short, 1)
    found = short.json("repair", "--wait", "10")
    assert found["all_speak"]
    assert not found["loss_accepted"]
    assert list(found["repaired"].values()) == [300]
    assert short.json("show", "a:7")["on"] == 3
    assert [node["max_ttl"] for node in found["nodes"]] == [MAX_TTL] * 3, "a repair does not raise it"


def test_too_few_remember(short):
    done(short, "a:1")
    forget_all(short, 0)
    forget_all(short, 1)
    time.sleep(MAX_TTL * 1.1)
    outcome = short.run("repair")
    assert outcome.status == 1
    assert "1 nodes remember and 2 are needed" in outcome.err
    asked = short.run("repair", "--accept-loss")
    assert asked.status == 2
    assert "--yes" in asked.err
    found = short.json("repair", "--accept-loss", "--yes", "--wait", "5")
    assert found["loss_accepted"]
    assert found["all_speak"]
    assert short.json("show", "a:1")["on"] == 3, "what the last one knows is copied all the same"


@pytest.mark.parametrize(("answer", "status"), [(b"n\n", 1), (b"y\n", 0)], ids=["no", "yes"])
def test_a_person_is_asked_before_a_loss_is_accepted(bench, answer, status):
    parent, child = pty.openpty()
    arguments = [word for url in bench.urls for word in ("--node", url)]
    command = [sys.executable, "-m", "dramatiq_idem", "repair", "--accept-loss", "--json", *arguments]
    try:
        os.write(parent, answer)
        process = subprocess.run(
            command, stdin=child, capture_output=True, text=True, cwd=ROOT, timeout=15, check=False
        )
    finally:
        os.close(parent)
        os.close(child)
    assert process.returncode == status
    assert "may be run again" in process.stderr
    assert process.stdout == "" or json.loads(process.stdout)["all_speak"]


def test_a_node_that_waits_is_explained(fragile):
    with fragile.client(0) as client:
        identity, _, longest, granted, _, nodes = client.get("idem:marker").split()
        client.set("idem:marker", f"{identity} {fragile.now()} {longest} {granted} leases {nodes}")
    outcome = fragile.run("repair")
    assert outcome.status == 1
    assert "waits for" in outcome.err


def test_a_node_that_nobody_met_since_it_forgot_is_no_success(fragile):
    with fragile.client(2) as client:
        client.flushall()
    found = fragile.run("repair", "--json")
    assert found.status == 1
    assert not found.json["all_speak"]
    assert "no worker has met it" in found.err


def test_a_node_that_restarted_unnoticed_is_not_counted_on(fragile):
    with fragile.client(1) as client:
        client.set("idem:marker", "0" * 40 + client.get("idem:marker")[40:])
    before = fragile.contents()
    outcome = fragile.run("repair")
    assert outcome.status == 1
    assert f"{fragile.nodes[1].port}" in outcome.err
    assert fragile.contents() == before


def test_nodes_that_are_down(fragile):
    fragile.nodes[0].kill()
    outcome = fragile.run("repair")
    assert outcome.status == 1
    assert str(fragile.nodes[0].port) in outcome.err
    fragile.nodes[1].kill()
    assert fragile.json("repair", "--timeout", "0.5", status=3)["status"] == 3


def test_password_that_is_refused(guarded):
    outcome = guarded.run("repair", "--json")
    assert outcome.status == 1
    assert "hunter2" not in outcome.out + outcome.err


def test_foreign_data_keeps_no_record_from_being_repaired(short):
    """On a node that remembers, on the one that forgot, and on that one under the very key of a record."""
    for name in ("a:1", "a:2", "a:3"):
        done(short, name)
    with short.client(0) as client:
        client.set("idem:record:a:text", "hello", px=60_000)
        client.hset("idem:record:a:hash", "field", "value")
        client.expire("idem:record:a:hash", 60)
    forget_all(short, 1)
    with short.client(1) as client:
        client.hset("idem:record:a:2", "field", "value")
    outcome = short.run("repair", "--wait", "10")
    assert outcome.status == 0, outcome
    with short.client(1) as client:
        assert client.type("idem:record:a:2") == "hash"
        assert client.exists("idem:record:a:text", "idem:record:a:hash") == 0
    assert [short.json("show", name)["on"] for name in ("a:1", "a:2", "a:3")] == [3, 2, 3]
