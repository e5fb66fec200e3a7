"""Nodes that forgot: a second holder never wins while the first one's lease may still be trusted.

Life times are scaled: max_ttl is about a second here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from redlock import Admitted, LockHeldError, QuorumUnreachableError, Redlock, RedlockError, SettingsError, scripts
from redlock.local import LocalNode, LocalNodes
from tests.tools.peek import Stopwatch, ask, happens, values

MAX_TTL = 1.0
WAIT = MAX_TTL * 1.02
"""What a node that forgot waits, with the default drift."""
SCALED = {"ttl": MAX_TTL, "max_ttl": MAX_TTL, "node_timeout": 0.2}


@pytest.fixture
def guarded(serving: Callable[..., Redlock]) -> Callable[..., Redlock]:
    """As `serving`, with a max_ttl of a second."""
    return lambda nodes, **options: serving(nodes, **SCALED | options)


def hold_two_of_three(redlock: Redlock, nodes: LocalNodes) -> Any:
    """Return a lease that only the first two nodes granted: on the third somebody else was just before."""
    ask(nodes[2].url, "SET", "redlock:lock:r", "somebody else's", "PX", 200)
    lease = redlock.acquire("r")
    assert happens(lambda: values(nodes[:2], "r") == [lease.token] * 2)
    ask(nodes[2].url, "DEL", "redlock:lock:r")
    return lease


def nobody_else_while_valid(lease: Any, other: Redlock) -> float:
    """Try to acquire again and again; return the seconds after the lease's end at which it worked."""
    end = time.monotonic() + lease.remaining()
    while True:
        was_valid = not lease.lost
        try:
            other.acquire("r")
        except (LockHeldError, QuorumUnreachableError):
            assert time.monotonic() < end + 5.0, "the nodes never served again"
            time.sleep(0.01)
        else:
            assert not was_valid or time.monotonic() >= end, "two holders"
            assert time.monotonic() >= end, "two holders"
            return time.monotonic() - end


# -- what makes a node forget


def restarted(node: LocalNode) -> None:
    node.restart()


def replaced(node: LocalNode) -> None:
    node.restart(wipe=True)


def flushed(node: LocalNode) -> None:
    ask(node.url, "FLUSHALL")


def demoted_and_promoted(node: LocalNode, marker: str = "") -> None:
    """A full synchronisation with another server on the way; our connection to the node survives it."""
    with LocalNodes(1, config={"repl-diskless-sync-delay": 0}) as other:
        if marker:
            ask(other[0].url, "SET", "redlock:marker", marker)
        ask(node.url, "REPLICAOF", "127.0.0.1", other[0].port)
        assert happens(lambda: ask(node.url, "INFO", "replication").get("master_link_status") == "up", within=5.0)
        ask(node.url, "REPLICAOF", "NO", "ONE")


def replaced_by_an_old_copy(node: LocalNode) -> None:
    """As a failover to a replica that lags: the marker is there, the lease is not; only the identity tells."""
    demoted_and_promoted(node, ask(node.url, "GET", "redlock:marker"))


@pytest.mark.parametrize(
    ("forget", "max_ttl"),
    [
        (restarted, MAX_TTL),
        (replaced, MAX_TTL),
        (flushed, MAX_TTL),
        (demoted_and_promoted, 3 * MAX_TTL),  # a synchronisation takes a second or two
        (replaced_by_an_old_copy, 3 * MAX_TTL),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_node_that_forgot_waits(
    nodes3: LocalNodes, guarded: Any, make_redlock: Any, forget: Any, max_ttl: float
) -> None:
    """L72: the second node forgets the lease; nobody gets it before it has ended."""
    options = SCALED | {"ttl": max_ttl, "max_ttl": max_ttl}
    redlock = guarded(nodes3, **options)
    other = make_redlock(nodes3, **options)
    other.acquire("warm-up").release()
    lease = hold_two_of_three(redlock, nodes3)
    forget(nodes3[1])
    assert not lease.lost, "the lease was too short to show anything"
    nobody_else_while_valid(lease, other)


def test_without_the_guard_there_are_two_holders(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    """L72: switched off by name, this is what happens; documented, and the proof that the test above sees it."""
    redlock = guarded(nodes3, restart_guard=False)
    lease = hold_two_of_three(redlock, nodes3)
    replaced(nodes3[1])
    other = make_redlock(nodes3, **SCALED, restart_guard=False)
    assert other.acquire("r").validity > 0
    assert not lease.lost


def test_restart_behind_a_proxy(nodes3: LocalNodes, proxied: Any, guarded: Any, make_redlock: Any) -> None:
    """The address stays, the server behind it is another one."""
    proxies = proxied(nodes3)
    urls = [proxy.url for proxy in proxies]
    redlock = guarded(urls)
    lease = hold_two_of_three(redlock, nodes3)
    with LocalNodes(1) as fresh:
        proxies[1]._target = ("127.0.0.1", fresh[0].port)
        proxies[1].set("pass", kill_connections=True)
        nobody_else_while_valid(lease, make_redlock(urls, **SCALED))
        assert ask(fresh[0].url, "EXISTS", "redlock:marker") == 1


def test_one_restart_costs_no_availability(nodes3: LocalNodes, guarded: Any, events: list[Any]) -> None:
    """The two others go on; the event names the wait of the third."""
    redlock = guarded(nodes3)
    nodes3[2].restart(wipe=True)
    watch = Stopwatch()
    while watch.seconds < WAIT + 0.5 and not any(_is_of(event, nodes3[2]) for event in events):
        redlock.acquire("r").release()
        time.sleep(0.01)
    told = [event for event in events if _is_of(event, nodes3[2])]
    assert [(event.reason, event.rights) for event in told] == [("new", "leases")]
    assert 0.5 < told[0].wait_ms / 1000 <= WAIT + 0.02


def _is_of(event: Any, node: LocalNode) -> bool:
    return isinstance(event, Admitted) and event.node.endswith(f":{node.port}/0") and event.reason != "vouched"


def test_slowest_node_is_admitted_again_too(nodes3: LocalNodes, proxied: Any, guarded: Any) -> None:
    """Its refusals come when a quorum has long decided; yet it must serve when another node fails later."""
    proxies = proxied(nodes3)
    redlock = guarded([proxy.url for proxy in proxies])
    proxies[2].set("delay", 0.0, 0.02)
    nodes3[2].restart(wipe=True)
    watch = Stopwatch()
    while watch.seconds < WAIT + 1.0:
        redlock.acquire("r", wait=1.0).release()
        time.sleep(0.02)
    nodes3[0].kill()
    assert redlock.acquire("s", wait=0.5).validity > 0


def test_slowest_node_grants_too(nodes3: LocalNodes, proxied: Any, guarded: Any) -> None:
    """It knows no script after SCRIPT FLUSH, and its NOSCRIPT comes too late for each single call."""
    proxies = proxied(nodes3)
    redlock = guarded([proxy.url for proxy in proxies])
    proxies[2].set("delay", 0.0, 0.02)
    ask(nodes3[2].url, "SCRIPT", "FLUSH")
    found = False
    for number in range(10):
        redlock.acquire(f"r{number}")
        time.sleep(0.05)
        found = found or values(nodes3[2:], f"r{number}") != [None]
    assert found


# -- several nodes at once


def test_power_cut_of_all_with_two_back(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    """Nobody remembers who held what: the two that are back serve once every lease has ended."""
    redlock = guarded(nodes3)
    lease = redlock.acquire("r")
    for node in nodes3:
        node.kill()
    for node in nodes3[:2]:
        node.restart(wipe=True)
    assert nobody_else_while_valid(lease, make_redlock(nodes3, **SCALED)) < 2.0


def test_power_cut_of_nodes_that_keep_files(local_nodes: Any, guarded: Any, make_redlock: Any) -> None:
    """Append-only files may end before the last lease: the markers are there, and of another identity."""
    nodes = local_nodes(3, persistence="always")
    redlock = guarded(nodes)
    lease = redlock.acquire("r")
    for node in nodes:
        node.kill()
    for node in nodes:
        node.restart()
        ask(node.url, "DEL", "redlock:lock:r")  # the write that was lost
    nobody_else_while_valid(lease, make_redlock(nodes, **SCALED))


def test_flush_of_all_nodes_is_somebodys_decision(nodes3: LocalNodes, guarded: Any) -> None:
    """With all nodes there and all of them new they serve since their start, as on first use."""
    redlock = guarded(nodes3)
    grow_old(nodes3)
    for node in nodes3:
        flushed(node)
    watch = Stopwatch()
    assert redlock.acquire("r").validity > 0
    assert watch.seconds < 0.5


def grow_old(nodes: LocalNodes) -> None:
    """Wait until servers have been running for longer than the wait; they tell their age in whole seconds."""
    assert happens(lambda: all(ask(node.url, "INFO", "server")["uptime_in_seconds"] >= 3 for node in nodes), within=5.0)


# -- first use


def test_clean_start_serves_after_the_wait_and_says_so(
    nodes3: LocalNodes, make_redlock: Any, events: list[Any]
) -> None:
    """L74: three fresh nodes: usable once they are old enough; one line per node names the wait."""
    redlock = make_redlock(nodes3, **SCALED)
    watch = Stopwatch()
    lease = redlock.acquire("r", wait=5.0)
    assert watch.seconds < WAIT + 2.5  # more, since servers tell their age in whole seconds
    assert lease.validity > 0
    told = [event for event in events if isinstance(event, Admitted)]
    assert {event.node for event in told} == {f"127.0.0.1:{node.port}/0" for node in nodes3}
    assert {(event.reason, event.rights) for event in told} == {("new", "records")}
    assert all(0 < event.wait_ms <= (WAIT + 1.01) * 1000 for event in told)


def test_bootstrap_serves_at_once_and_says_so(nodes3: LocalNodes, make_redlock: Any, events: list[Any]) -> None:
    """L74: on somebody's word there is no wait."""
    redlock = make_redlock(nodes3, **SCALED)
    redlock.bootstrap()
    watch = Stopwatch()
    redlock.acquire("r")
    assert watch.seconds < 0.5
    assert [(event.reason, event.wait_ms) for event in events if isinstance(event, Admitted)] == [("vouched", 0)] * 3


def test_old_servers_serve_the_first_call(nodes3: LocalNodes, make_redlock: Any) -> None:
    """L74: servers that have been running for longer than the wait never held anything."""
    grow_old(nodes3)
    assert make_redlock(nodes3, **SCALED).acquire("r").validity > 0


def test_first_use_with_one_node_down(nodes3: LocalNodes, make_redlock: Any) -> None:
    """Who is away may remember: the others serve after max_ttl from now, however old they are, and not sooner."""
    grow_old(nodes3)
    nodes3[2].kill()
    redlock = make_redlock(nodes3, **SCALED)
    watch = Stopwatch()
    redlock.acquire("r", wait=5.0)
    assert WAIT <= watch.seconds < WAIT + 1.5


def test_bootstrap_refuses_where_nodes_vote_already(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    guarded(nodes3)
    with pytest.raises(SettingsError, match="force"):
        make_redlock(nodes3, **SCALED).bootstrap()
    make_redlock(nodes3, **SCALED).bootstrap(force=True)


def test_bootstrap_refuses_where_leases_are_held(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    """Markers may be missing and leases there: a namespace that was used without the guard."""
    redlock = guarded(nodes3)
    redlock.acquire("r")
    for node in nodes3:
        ask(node.url, "DEL", "redlock:marker")
    with pytest.raises(SettingsError, match="force"):
        make_redlock(nodes3, **SCALED).bootstrap()


def test_bootstrap_needs_all_nodes(nodes3: LocalNodes, make_redlock: Any) -> None:
    nodes3[2].kill()
    with pytest.raises(QuorumUnreachableError):
        make_redlock(nodes3, **SCALED).bootstrap()


# -- two values of max_ttl


def test_shorter_max_ttl_of_another_client_does_not_shorten_the_wait(
    nodes3: LocalNodes, guarded: Any, make_redlock: Any
) -> None:
    """The holder's namespace has two seconds, the other client says half a second: what is remembered counts."""
    redlock = guarded(nodes3, ttl=2.0, max_ttl=2.0)
    lease = hold_two_of_three(redlock, nodes3)
    replaced(nodes3[1])
    nobody_else_while_valid(lease, make_redlock(nodes3, ttl=0.4, max_ttl=0.5, node_timeout=0.2))


def test_node_that_forgot_is_not_admitted_by_who_knows_no_better(
    nodes3: LocalNodes, proxied: Any, guarded: Any, make_redlock: Any
) -> None:
    """As above, but no node that remembers can be read at first: nobody may write a shorter wait then."""
    proxies = proxied(nodes3)
    urls = [proxy.url for proxy in proxies]
    redlock = guarded(urls, ttl=3.0, max_ttl=3.0)
    lease = hold_two_of_three(redlock, nodes3)
    replaced(nodes3[1])
    for proxy in (proxies[0], proxies[2]):
        proxy.set("refuse")
    other = make_redlock(urls, ttl=0.4, max_ttl=0.4, node_timeout=0.2)
    for _ in range(3):
        with contextlib.suppress(QuorumUnreachableError):
            other.acquire("r")
    time.sleep(0.5)
    proxies[2].set("pass")
    nobody_else_while_valid(lease, other)


def test_longer_lease_raises_max_ttl_on_all_nodes(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    """Nobody waits for that, and afterwards a node that forgot waits for the longer time."""
    guarded(nodes3)
    longer = make_redlock(nodes3, ttl=2.0, max_ttl=2.0, node_timeout=0.2)
    watch = Stopwatch()
    lease = longer.acquire("r", wait=2.0)
    assert watch.seconds < 0.9
    assert happens(lambda: [_marker(node)[2:4] for node in nodes3] == [["2000", "2000"]] * 3)
    assert happens(lambda: values(nodes3, "r") == [lease.token] * 3)


def _marker(node: LocalNode) -> list[str]:
    return str(ask(node.url, "GET", "redlock:marker")).split()


def test_longer_lease_is_refused_while_a_node_is_away(nodes3: LocalNodes, guarded: Any, make_redlock: Any) -> None:
    """It would remember the shorter time; the error names it."""
    guarded(nodes3)
    nodes3[2].kill()
    longer = make_redlock(nodes3, ttl=2.0, max_ttl=2.0, node_timeout=0.2)
    with pytest.raises(SettingsError, match=str(nodes3[2].port)):
        longer.acquire("r", wait=1.0)


def test_longer_max_ttl_survives_a_restart_of_its_only_witness(
    nodes3: LocalNodes, guarded: Any, make_redlock: Any
) -> None:
    """Raised on all, forgotten by one, remembered by the others: the holder of a long lease is safe."""
    guarded(nodes3)
    longer = make_redlock(nodes3, ttl=2.5, max_ttl=2.5, node_timeout=0.2)
    longer.acquire("warm-up", wait=2.0).release()
    lease = hold_two_of_three(longer, nodes3)
    replaced(nodes3[1])
    nobody_else_while_valid(lease, make_redlock(nodes3, **SCALED))


# -- the scripts themselves


def admit(node: LocalNode, seen: str, since: str, identity: str = "", too_late: int = 2**52) -> Any:
    """Run the script of the admission by hand."""
    identity = identity or ask(node.url, "INFO", "replication")["master_replid"]
    arguments = (seen, identity, too_late, 1000, 1000, "leases", since, "-")
    return ask(node.url, "EVAL", scripts.ADMIT.text, 1, "redlock:marker", *arguments)


def test_admission_changes_nothing_where_the_marker_changed(nodes3: LocalNodes) -> None:
    """Two clients that admit the same node: the second one's word is stale."""
    assert admit(nodes3[0], "", "now")[0] == 1
    before = _marker(nodes3[0])
    assert admit(nodes3[0], "", "ever")[0] == 0
    assert _marker(nodes3[0]) == before


def test_admission_changes_nothing_where_the_node_is_another_one(nodes3: LocalNodes) -> None:
    """The node forgot once more between the refusal and its admission: `keep` and `boot` would skip the wait."""
    assert admit(nodes3[0], "", "boot", identity="ab" * 20)[0] == 0
    assert ask(nodes3[0].url, "EXISTS", "redlock:marker") == 0


def test_admission_that_was_under_way_for_long_changes_nothing(nodes3: LocalNodes) -> None:
    assert admit(nodes3[0], "", "now", too_late=1)[0] == 0
    assert ask(nodes3[0].url, "EXISTS", "redlock:marker") == 0


def test_foreign_value_in_the_markers_place_is_no_vote(nodes3: LocalNodes, guarded: Any) -> None:
    redlock = guarded(nodes3)
    for node in nodes3[1:]:
        ask(node.url, "SET", "redlock:marker", "somebody else's")
    with pytest.raises(RedlockError, match="redlock:marker"):
        redlock.acquire("r")


def test_first_replica_makes_a_node_wait_once(nodes3: LocalNodes, guarded: Any) -> None:
    """Attaching one changes the identity; the node is admitted again and the others bridge the wait."""
    redlock = guarded(nodes3)
    ask(nodes3[1].url, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
    with LocalNodes(1) as replica:
        ask(replica[0].url, "REPLICAOF", "127.0.0.1", nodes3[1].port)
        assert happens(lambda: ask(replica[0].url, "INFO", "replication").get("master_link_status") == "up", within=5.0)
        watch = Stopwatch()
        while watch.seconds < WAIT + 0.5:
            redlock.acquire("r", wait=0.5).release()
            time.sleep(0.02)
    nodes3[0].kill()
    assert redlock.acquire("s", wait=1.0).validity > 0
