"""`doctor`: what it finds, and the status by the worst of it."""

from __future__ import annotations

import pytest
import redis

from tests.conftest import SERVERS


def rules(document, severity=None):
    return {each["rule"] for each in document["findings"] if severity in (None, each["severity"])}


def test_healthy_nodes_have_remarks_only(bench):
    found = bench.json("doctor")
    assert found["worst"] == "info"
    assert rules(found) == {"persistence"}
    for node in found["nodes"]:
        assert node["reachable"]
        assert 0 < node["latency"] < 1
        assert (node["role"], node["eviction"], node["append_only"]) == ("master", "noeviction", False)
        assert abs(node["clock_offset"]) < 1
        assert node["marker"]["standing"] == "records"
        assert node["marker"]["max_ttl"] == 30
        assert len(node["marker"]["node_list"]) == 8
    outcome = bench.run("doctor")
    assert outcome.status == 0
    for word in ("reachable", "latency", "noeviction", "master", "records", "30.0 s", "info", "a restart loses"):
        assert word in outcome.out
    assert "\x1b" not in outcome.out


def test_new_nodes_are_no_reason_to_worry(local_nodes, make_bench):
    bench = make_bench(local_nodes(3, persistence="always"))
    found = bench.json("doctor")
    assert rules(found) == {"new"}
    assert bench.contents() == [{}, {}, {}]


def test_a_node_that_was_replaced_by_an_empty_one_is_a_warning(fragile):
    """It may not vote yet, so one node less may fail: that is not "all is well"."""
    fragile.nodes[1].kill()
    fragile.nodes[1].restart()
    found = fragile.json("doctor", status=10)
    assert rules(found, "warning") == {"empty"}
    assert [each["node"] for each in found["findings"] if each["rule"] == "empty"] == [found["nodes"][1]["node"]]


def test_warnings_have_a_status(fragile):
    with fragile.client(1) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    found = fragile.json("doctor", status=10)
    assert found["worst"] == "warning"
    assert rules(found, "warning") == {"eviction_policy"}


def test_forgetful_and_restarted_nodes_are_told(fragile):
    with fragile.client(0) as client:
        client.set("idem:marker", client.get("idem:marker").replace(" records ", " leases "))
    found = fragile.json("doctor", status=10)
    assert rules(found, "warning") == {"forgetful"}
    with fragile.client(1) as client:
        client.set("idem:marker", "0" * 40 + client.get("idem:marker")[40:])
    found = fragile.json("doctor", status=20)
    assert rules(found, "warning") == {"forgetful", "restarted"}
    assert rules(found, "error") == {"absence"}
    assert "nothing new runs" in fragile.run("doctor").out
    with fragile.client(2) as client:
        client.set("idem:marker", "hello")
    assert rules(fragile.json("doctor", status=20), "error") == {"absence", "marker"}


@pytest.mark.parametrize("down", [1, 2, 3])
def test_a_node_that_is_down_is_an_error(fragile, down):
    for node in list(fragile.nodes)[:down]:
        node.kill()
    found = fragile.json("doctor", "--timeout", "0.5", status=20)
    assert [node["reachable"] for node in found["nodes"]] == [False] * down + [True] * (3 - down)
    unreachable = [each for each in found["findings"] if each["rule"] == "unreachable"]
    assert len(unreachable) == down
    assert all(each["remedy"] for each in unreachable)
    assert "no" in fragile.run("doctor", "--timeout", "0.5").out


def test_password_that_is_refused(guarded):
    outcome = guarded.run("doctor", "--json")
    assert outcome.status == 20
    (finding,) = [each for each in outcome.json["findings"] if each["rule"] == "unreachable"]
    assert "credentials" in finding["remedy"]
    assert "hunter2" not in outcome.out + outcome.err + guarded.run("doctor").out


def test_another_list_of_nodes_is_an_error(bench):
    found = bench.json("doctor", urls=bench.urls[:2], status=20)
    assert rules(found, "error") == {"node_list"}


def test_one_server_under_two_names_is_an_error(bench):
    twice = bench.urls[0].replace("127.0.0.1", "localhost")
    assert "same_server" in rules(bench.json("doctor", urls=[*bench.urls[:2], twice], status=20), "error")


# -- rights


def with_user(bench, *rule):
    urls = []
    for index, url in enumerate(bench.urls):
        with bench.client(index) as client:
            client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">hunter2", *rule)
        urls.append(url.replace("redis://", "redis://app:hunter2@"))
    return urls


@pytest.mark.parametrize("server", list(SERVERS))
def test_printed_rule_is_enough_for_everything(local_nodes, make_bench, server):
    if SERVERS[server] is None:
        pytest.skip(f"no {server}-server")
    from tests.integration.dramatiq_idem.conftest import bootstrap

    bench = make_bench(bootstrap(local_nodes(3, binary=SERVERS[server])))
    rule = bench.run("doctor", "--acl", urls=[]).out.split()
    assert bench.json("doctor", "--acl", urls=[])["acl"].split() == rule
    urls = with_user(bench, *rule)
    bench.done("a:k")
    found = bench.json("doctor", urls=urls)
    assert not rules(found, "error")
    for command in ("ls", "show a:k", "repair", "watch --once", "forget a:k"):
        assert bench.run(*command.split(), urls=urls).status == 0, command


def test_missing_right_is_named_with_the_whole_rule(fragile):
    rule = fragile.run("doctor", "--acl").out.split()
    urls = with_user(fragile, *rule, "-scan")
    found = fragile.json("doctor", urls=urls, status=20)
    assert rules(found, "error") == {"scripts"}
    urls = with_user(fragile, *rule, "-eval", "-evalsha")
    outcome = fragile.run("doctor", "--json", urls=urls)
    assert outcome.status == 20
    remedies = {each["remedy"] for each in outcome.json["findings"] if each["rule"] == "rights"}
    assert remedies == {f"allow: {' '.join(rule)}"}
    assert "hunter2" not in outcome.out


def test_nodes_are_looked_at_without_a_trace(bench):
    with redis.Redis.from_url(bench.urls[0]) as client:
        before = client.dbsize()
        bench.run("doctor")
        assert client.dbsize() == before
