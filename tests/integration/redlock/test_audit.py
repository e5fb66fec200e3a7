"""The audit, finding by finding, each on a real server in that state; and the least rights that a user needs."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest, Recorded
from dramatiq_idem.record import State
from redlock import AsyncRedlock, NodeReport, QuorumUnreachableError, Redlock, Severity, acl_rule
from redlock.local import LocalNodes
from tests.tools.impostor import Impostor
from tests.tools.peek import ask, happens, lock_keys, values
from tests.tools.wallskew import WallSkew, compiled_shim

PASSWORD = "s3cr3t-of-this-test"


@pytest.fixture
def audited(make_redlock: Any) -> Callable[..., list[NodeReport]]:
    """Return what the audit says about some nodes."""
    return lambda nodes, **options: make_redlock(nodes, **options).audit()


def rules(report: NodeReport) -> set[str]:
    """Return the names of a report's findings; each has a text and a remedy."""
    assert all(finding.text and finding.remedy for finding in report.findings)
    assert list(report.findings) == sorted(report.findings, key=lambda finding: -finding.severity)
    return {finding.rule for finding in report.findings}


def severity(report: NodeReport, rule: str) -> Severity:
    """Return how bad a finding is."""
    return next(finding.severity for finding in report.findings if finding.rule == rule)


# -- what is in order


def test_healthy_nodes_have_nothing_but_a_remark(trio_on_each_server: LocalNodes, audited: Any) -> None:
    """That nothing is persistent is worth a word, no more; a node has latency, clock, product and version."""
    reports = audited(trio_on_each_server)
    assert [report.node for report in reports] == [f"127.0.0.1:{node.port}/0" for node in trio_on_each_server]
    for report in reports:
        assert report.is_reachable
        assert report.latency is not None
        assert 0 < report.latency < 0.5
        assert report.clock_offset is not None
        assert abs(report.clock_offset) < 0.1
        assert report.facts is not None
        assert report.facts.product in ("Valkey", "Redis")
        assert report.facts.version
        assert report.marker is None
        assert rules(report) == {"persistence"}
        assert report.severity is Severity.INFO


def test_marker_is_read(trio: LocalNodes, serving: Any) -> None:
    redlock = serving(trio)
    for report in redlock.audit():
        assert report.marker is not None
        assert rules(report) == {"persistence"}


def test_audit_leaves_nothing_behind(trio: LocalNodes, audited: Any) -> None:
    audited(trio)
    assert [ask(node.url, "DBSIZE") for node in trio] == [0] * 3


def test_asyncio_reports_the_same(trio: LocalNodes, serving: Any) -> None:
    plain = serving(trio).audit()

    async def scenario() -> list[NodeReport]:
        redlock = AsyncRedlock(trio.urls, 5.0)
        reports = await redlock.audit()
        await redlock.close()
        return reports

    assert [(each.node, each.marker, rules(each)) for each in asyncio.run(scenario())] == [
        (each.node, each.marker, rules(each)) for each in plain
    ]


# -- what cannot be reached


def test_dead_node(nodes3: LocalNodes, audited: Any) -> None:
    nodes3[1].kill()
    reports = audited(nodes3)
    assert [rules(report) for report in reports] == [{"persistence"}, {"unreachable"}, {"persistence"}]
    assert not reports[1].is_reachable
    assert reports[1].severity is Severity.ERROR


def test_stopped_node_costs_a_bounded_time(nodes3: LocalNodes, audited: Any) -> None:
    nodes3[1].pause()
    started = time.monotonic()
    reports = audited(nodes3, node_timeout=0.3)
    assert time.monotonic() - started < 3.0
    assert rules(reports[1]) == {"unreachable"}
    nodes3[1].resume()


def test_wrong_password_is_named_and_never_shown(local_nodes: Any, audited: Any) -> None:
    nodes = local_nodes(1, config={"requirepass": "another"})
    reports = audited([f"redis://:{PASSWORD}@127.0.0.1:{nodes[0].port}"])
    assert rules(reports[0]) == {"unreachable"}
    assert "credentials" in reports[0].findings[0].remedy
    assert PASSWORD not in repr(reports)


def test_no_redis_at_all(audited: Any) -> None:
    with Impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n") as impostor:
        reports = audited([impostor.url])
    assert "unreachable" in rules(reports[0])
    assert reports[0].severity is Severity.ERROR


# -- what a server is


def test_replica(local_nodes: Any, audited: Any) -> None:
    (primary,) = local_nodes(1)
    (replica,) = local_nodes(1, config={"replicaof": f"127.0.0.1 {primary.port}"})
    reports = audited([primary.url, replica.url])
    assert "replica" not in rules(reports[0])
    assert severity(reports[1], "replica") is Severity.ERROR


def test_cluster_node(local_nodes: Any, audited: Any) -> None:
    nodes = local_nodes(1, config={"cluster-enabled": "yes"})
    assert severity(audited(nodes)[0], "cluster") is Severity.ERROR


@pytest.mark.parametrize(
    ("config", "rule", "level"),
    [
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}, "evicting", Severity.ERROR),
        ({"maxmemory-policy": "volatile-ttl", "maxmemory": "100mb"}, "evicting", Severity.ERROR),
        ({"maxmemory-policy": "allkeys-lru"}, "eviction_policy", Severity.WARNING),
        ({"maxmemory-policy": "noeviction", "maxmemory": "100mb"}, None, None),
    ],
    ids=["evicts any key", "evicts keys with a ttl", "would, without a limit", "limited and refuses"],
)
def test_eviction(local_nodes: Any, audited: Any, config: dict[str, str], rule: str | None, level: Any) -> None:
    (report,) = audited(local_nodes(1, config=config))
    assert rules(report) - {"persistence"} == ({rule} if rule else set())
    if rule:
        assert severity(report, rule) is level


@pytest.mark.parametrize(
    ("persistence", "config", "found"),
    [
        ("none", {}, {"persistence"}),
        ("none", {"save": '"3600 1"'}, {"persistence"}),
        ("everysec", {}, {"fsync"}),
        ("always", {}, set()),
    ],
    ids=["none", "snapshots", "everysec", "always"],
)
def test_persistence(local_nodes: Any, audited: Any, persistence: str, config: dict[str, str], found: set[str]) -> None:
    (report,) = audited(local_nodes(1, persistence=persistence, config=config))
    assert rules(report) == found
    assert report.severity is Severity.INFO
    assert ("last snapshot" in "".join(finding.text for finding in report.findings)) is bool(config)


def test_same_server_twice(trio: LocalNodes, audited: Any) -> None:
    """Under two names and in two databases; both are named."""
    port = trio[0].port
    for second in (f"redis://localhost:{port}", f"redis://127.0.0.1:{port}/1"):
        reports = audited([trio[0].url, second, trio[1].url])
        assert [("same_server" in rules(report)) for report in reports] == [False, True, False]
        assert severity(reports[1], "same_server") is Severity.ERROR
        assert f"127.0.0.1:{port}/0" in reports[1].findings[0].text


def test_other_list_of_nodes(trio: LocalNodes, serving: Any, audited: Any) -> None:
    """Two lists can grant two leases."""
    serving(trio)
    assert all("node_list" not in rules(report) for report in audited(trio))
    for report in audited(trio.urls[:2]):
        assert severity(report, "node_list") is Severity.ERROR


def test_brokers_keys(trio: LocalNodes, audited: Any) -> None:
    """A Dramatiq broker that was really used on one of the nodes."""
    broker = RedisBroker(url=trio[0].url)
    try:

        @dramatiq.actor(broker=broker)
        def job() -> None:
            pass

        job.send()
        worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=50)
        worker.start()
        broker.join("default", timeout=5_000)
        worker.stop()
    finally:
        broker.close()
        broker.client.close()
    reports = audited(trio)
    assert [("broker" in rules(report)) for report in reports] == [True, False, False]
    assert severity(reports[0], "broker") is Severity.WARNING


# -- clocks


@pytest.fixture
def skewed(default_server: str, local_nodes: Any, tmp_path: Path) -> Iterator[tuple[LocalNodes, WallSkew]]:
    """Return one node with a clock of its own, and the handle to it."""
    skew = WallSkew(compiled_shim(tmp_path), tmp_path)
    wrapper = tmp_path / "server"
    settings = " ".join(f"{name}='{skew.env()[name]}'" for name in ("LD_PRELOAD", "WALLSKEW_FILE"))
    wrapper.write_text(f'#!/bin/sh\n{settings} exec "{default_server}" "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    yield local_nodes(1, binary=str(wrapper)), skew
    skew.close()


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(0.0, None), (2.0, Severity.WARNING), (-2.0, Severity.WARNING), (60.0, Severity.ERROR), (-60.0, Severity.ERROR)],
)
def test_clock_that_is_off(trio: LocalNodes, skewed: Any, audited: Any, seconds: float, found: Any) -> None:
    """A warning while fencing tokens bear it (29.6 s with a max_ttl of 30 s), an error beyond."""
    nodes, skew = skewed
    skew.jump(seconds)
    time.sleep(0.01)
    reports = audited([*trio.urls[:2], nodes[0].url])
    assert all("clock" not in rules(report) for report in reports[:2])
    assert reports[2].clock_offset == pytest.approx(seconds, abs=0.3)
    assert ("clock" in rules(reports[2])) is (found is not None)
    if found is not None:
        assert severity(reports[2], "clock") is found


# -- missing rights


def with_user(nodes: LocalNodes, rule: str) -> list[str]:
    """Create a user from a rule on all nodes; return its URLs."""
    for node in nodes:
        ask(node.url, "ACL", "SETUSER", "worker", "reset", "on", f">{PASSWORD}", *rule.split())
        ask(node.url, "ACL", "LOG", "RESET")
    return [f"redis://worker:{PASSWORD}@127.0.0.1:{node.port}" for node in nodes]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("~* +@all", {"persistence"}),
        ("~* +@all -info", {"info", "rights"}),
        ("~* +@all -eval", {"persistence", "rights"}),
        ("~* +@all -@scripting", {"persistence", "rights"}),
        ("~* +@all -time", {"persistence", "rights"}),
        ("~other:* +@all", {"persistence", "rights"}),
        ("~* +@all -config -exists", {"persistence"}),
        ("~*", {"info", "rights"}),
    ],
    ids=["all", "no INFO", "no EVAL", "no scripts", "no TIME", "other keys", "no CONFIG, EXISTS", "nothing at all"],
)
def test_missing_rights_are_named_and_survived(local_nodes: Any, audited: Any, rule: str, found: set[str]) -> None:
    nodes = local_nodes(1)
    urls = with_user(nodes, rule)
    (report,) = audited(urls)
    assert report.is_reachable
    assert report.latency is not None
    assert rules(report) - {"persistence"} == found - {"persistence"}
    assert PASSWORD not in repr(report)
    if "rights" in found:
        text = next(finding for finding in report.findings if finding.rule == "rights")
        assert "redlock:*" in text.remedy
        assert text.severity is Severity.ERROR


# -- the generated rule


def denied(nodes: LocalNodes) -> list[Any]:
    """Return what the servers have denied to anybody since the user was made.

    But for SCAN, with which bootstrap looks for keys where it may: a user can do without.
    """
    logs = [ask(node.url, "ACL", "LOG") for node in nodes]
    return [entry for log in logs for entry in log if entry["object"] != "scan"]


@pytest.fixture
def own_nodes(each_server: str, local_nodes: Any) -> LocalNodes:
    """Three nodes of this test alone, on each kind of server."""
    nodes: LocalNodes = local_nodes(3, binary=each_server)
    return nodes


def test_rule_lets_a_user_do_all_that_locks_do(own_nodes: LocalNodes, make_redlock: Any) -> None:
    """L77: admission, bootstrap, acquire, extend, heal, fence, attach, undo, release, a longer max_ttl."""
    urls = with_user(own_nodes, acl_rule("app"))
    redlock: Redlock = make_redlock(urls, namespace="app", max_ttl=2.0, ttl=2.0, node_timeout=0.4)
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("too early")
    redlock.bootstrap(force=True)
    lease = redlock.acquire("r")
    assert lease.fencing_token > 0
    assert happens(lambda: values(own_nodes, "r", "app") == [lease.token] * 3)
    ask(own_nodes[2].url, "DEL", "app:lock:r")
    assert lease.extend()
    assert happens(lambda: lease.extend() and values(own_nodes, "r", "app") == [lease.token] * 3)
    assert redlock.attach("r", lease.token).fencing_token == lease.fencing_token
    ask(own_nodes[0].url, "INCRBY", "app:fence:r", 7)
    assert lease.release()
    with redlock.lock("r", ttl=0.5) as raised:
        assert raised.fencing_token > lease.fencing_token
        time.sleep(0.7)
        raised.check()
    for node in own_nodes[1:]:
        node.pause()
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("undone")
    for node in own_nodes[1:]:
        node.resume()
    assert happens(lambda: lock_keys(own_nodes, "app") == [])
    longer: Redlock = make_redlock(urls, namespace="app", max_ttl=4.0, ttl=4.0)
    assert longer.acquire("long", wait=3.0).release()
    own_nodes[1].restart()
    with_user(own_nodes[1:2], acl_rule("app"))
    assert happens(lambda: longer.acquire("after a restart", wait=1.0).release(), within=5.0)
    assert denied(own_nodes) == []
    assert all(key.startswith("app:") for node in own_nodes for key in ask(node.url, "KEYS", "*"))


def test_rule_lets_a_user_do_all_that_records_do(own_nodes: LocalNodes, make_redlock: Any) -> None:
    """L77: claim, renew, fence, complete, abandon, undo, look, forget; repair with scan, copy and entitle."""
    urls = with_user(own_nodes, acl_rule("app", ("redlock", "dramatiq_idem")))
    make_redlock(urls, namespace="app", max_ttl=1.0, ttl=1.0).bootstrap()
    store = RedlockStore(urls, namespace="app", max_ttl=1.0, node_timeout=0.4, observer=lambda _event: None)
    try:
        _claims_and_completes(store, own_nodes)
        _repairs(store, own_nodes)
    finally:
        store.close()
    assert denied(own_nodes) == []
    assert all(key.startswith("app:") for node in own_nodes for key in ask(node.url, "KEYS", "*"))


def request(name: str, lease_ms: int = 900) -> ClaimRequest:
    return ClaimRequest(name, "", "", lease_ms, 600_000)


def claimed(store: RedlockStore, name: str) -> Claim:
    outcomes: list[Any] = []
    assert happens(lambda: isinstance(outcomes.append(store.claim(request(name))) or outcomes[-1], Claim), 5.0), (
        outcomes
    )
    claim: Claim = outcomes[-1]
    return claim


def _claims_and_completes(store: RedlockStore, nodes: LocalNodes) -> None:
    claim = claimed(store, "one")
    kept = store.keep(claim, lambda cause: None)
    time.sleep(1.2)
    assert not claim.term.is_lost
    assert store.fence(claim)
    assert not isinstance(store.claim(request("one")), Claim)
    recorded = store.complete(claim, "42")
    kept.end()
    assert isinstance(recorded, Recorded)
    assert store.completion("one") is not None
    assert len(store.look("one")) == 3
    assert store.abandon(claimed(store, "two"), State.FREE, "stopped")
    assert store.forget("one", 600_000) > 0
    assert isinstance(store.complete(claimed(store, "one"), "43"), Recorded)
    for node in nodes[1:]:
        node.pause()
    assert not isinstance(store.claim(request("undone")), Claim)
    for node in nodes[1:]:
        node.resume()


def _repairs(store: RedlockStore, nodes: LocalNodes) -> None:
    ask(nodes[2].url, "FLUSHALL")
    claimed(store, "three")
    assert happens(store.repair, within=8.0)
    assert ask(nodes[2].url, "EXISTS", "app:record:one") == 1


def test_each_right_of_the_rule_is_needed(local_nodes: Any, make_redlock: Any) -> None:
    """L77: the rule is the least one: a server denies something as soon as one of its commands is taken out."""
    nodes = local_nodes(3)
    rule = acl_rule("app").split()
    make_redlock(nodes, namespace="app", node_timeout=0.4).bootstrap()
    idle = []
    for right in rule[1:]:
        urls = with_user(nodes, " ".join(word for word in rule if word != right))
        redlock: Redlock = make_redlock(urls, namespace="app", node_timeout=0.4)
        with contextlib.suppress(QuorumUnreachableError):
            lease = redlock.acquire(f"r{right}")
            time.sleep(0.01)  # an extension within the same millisecond changes nothing
            lease.extend()
            lease.release()
            ask(nodes[0].url, "SET", f"app:lock:held{right}", "x", "PX", 300)
            redlock.acquire(f"held{right}").release()
        if not denied(nodes):
            idle.append(right)
    assert idle == []
