"""Which servers may be nodes, with which rights, and what is said about them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest

from redlock import LockHeldError, QuorumUnreachableError, Redlock, RedlockError, SettingsError, log_event
from redlock.local import LocalNodes
from tests.tools.peek import ask, happens, lock_keys

SECRET = "hunter2"


@pytest.mark.parametrize("other", ["localhost", "database 1", "unix socket"])
def test_server_that_is_listed_twice_is_refused(
    local_nodes: Callable[..., LocalNodes], make_redlock: Any, other: str, tmp_path: Any
) -> None:
    """L69: under whatever address, the same run id is the same server: refused at first use, and nothing is written."""
    path = tmp_path / "s"
    nodes = local_nodes(2, config={"unixsocket": path} if other == "unix socket" else {})
    again = {
        "localhost": f"redis://localhost:{nodes[1].port}",
        "database 1": f"{nodes[1].url}/1",
        "unix socket": f"unix://{path}",
    }[other]
    redlock = make_redlock([*nodes.urls, again])
    for _ in range(2):
        with pytest.raises(SettingsError, match="same server") as caught:
            redlock.acquire("r")
        named = [node for node in nodes if f"127.0.0.1:{node.port}/0" in str(caught.value)]
        assert len(named) == 1, "the socket's file may be of either"
        assert ask(named[0].url, "INFO", "server")["run_id"] in str(caught.value)
    assert lock_keys(nodes) == []


def test_server_listed_twice_is_found_without_the_right_to_info(local_nodes: Any, make_redlock: Any) -> None:
    """L69: where INFO is not allowed and the guard is off, the run id is not there to compare."""
    nodes = local_nodes(2)
    for node in nodes:
        ask(node.url, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-info")
    urls = [f"redis://app:pw@127.0.0.1:{node.port}" for node in nodes]
    redlock = make_redlock([*urls, f"redis://app:pw@localhost:{nodes[1].port}"], restart_guard=False)

    def some_cycles() -> None:
        for _ in range(3_000):  # its second vote never counts, but may come when two others have decided already
            redlock.acquire("r").release()

    with pytest.raises(SettingsError, match="same server"):
        some_cycles()


def test_replica_has_no_vote(local_nodes: Any, serving: Any, make_redlock: Any) -> None:
    """L70: two independent nodes and a replica of one: the replica is named, and does not count."""
    nodes = local_nodes(3, config={"repl-diskless-sync-delay": 0})
    redlock = serving(nodes)
    redlock.acquire("warm-up").release()
    ask(nodes[2].url, "REPLICAOF", "127.0.0.1", nodes[1].port)
    assert happens(lambda: ask(nodes[2].url, "INFO", "replication").get("master_link_status") == "up")
    for each in (redlock, make_redlock(nodes)):
        with contextlib.suppress(QuorumUnreachableError):
            each.acquire("r", ttl=0.3)  # a first replica changes the identity of node 2 as well
        with pytest.raises(RedlockError) as caught:
            each.acquire("r", ttl=0.3)
        assert str(nodes[2].port) in str(caught.value)


def test_writable_replica_has_no_vote(local_nodes: Any, make_redlock: Any) -> None:
    """L70: `replica-read-only no` answers writes like a master; its vote would be its master's a second time."""
    nodes = local_nodes(3, config={"repl-diskless-sync-delay": 0, "replica-read-only": "no"})
    ask(nodes[2].url, "REPLICAOF", "127.0.0.1", nodes[1].port)
    assert happens(lambda: ask(nodes[2].url, "INFO", "replication").get("master_link_status") == "up")
    redlock = make_redlock(nodes, ttl=0.2, max_ttl=0.5)
    nodes[0].kill()
    with pytest.raises(RedlockError) as caught:
        redlock.acquire("r", wait=1.5)
    assert not isinstance(caught.value, LockHeldError)
    assert "replica" in str(caught.value)


def test_node_that_becomes_a_replica_is_an_error_from_then_on(nodes3: LocalNodes, serving: Any) -> None:
    """L70: on a live connection; the others are enough, and alone it is no quorum's second vote."""
    redlock = serving(nodes3)
    redlock.acquire("warm-up").release()
    ask(nodes3[2].url, "REPLICAOF", "127.0.0.1", 1)
    assert redlock.acquire("r").release()
    nodes3[1].kill()
    with pytest.raises(QuorumUnreachableError) as caught:
        redlock.acquire("r")
    assert set(caught.value.causes) == {f"127.0.0.1:{node.port}/0" for node in nodes3[1:]}


@pytest.mark.parametrize("has_slots", [False, True], ids=["without slots", "with all slots"])
def test_cluster_node_is_refused_by_name(local_nodes: Any, make_redlock: Any, has_slots: Any) -> None:
    """L12: no endless retry against a server that will answer MOVED, CLUSTERDOWN or CROSSSLOT for ever."""
    nodes = local_nodes(2, config={"cluster-enabled": "yes"})
    if has_slots:
        for node in nodes:
            ask(node.url, "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        assert happens(
            lambda: all("cluster_state:ok" in ask(node.url, "CLUSTER", "INFO") for node in nodes), within=5.0
        )
    redlock = make_redlock([*nodes.urls, "redis://127.0.0.1:1"])
    with pytest.raises(RedlockError, match=r"(?i)cluster") as caught:
        redlock.acquire("r", wait=10.0)
    assert str(nodes[0].port) in str(caught.value)


MINIMAL = (
    "+evalsha",
    "+eval",
    "+info",
    "+time",
    "+get",
    "+set",
    "+pttl",
    "+pexpire",
    "+del",
    "+select",
    "+hello",
    "+ping",
)


def test_minimal_rights_are_enough(nodes3: LocalNodes, make_redlock: Any) -> None:
    """L77: a user with just the commands of the list and the keys of the namespace; nothing is refused in the log."""
    for node in nodes3:
        ask(node.url, "ACL", "SETUSER", "app", "on", f">{SECRET}", "resetkeys", "~shop:*", "-@all", *MINIMAL)
    redlock = make_redlock([f"redis://app:{SECRET}@127.0.0.1:{node.port}" for node in nodes3], namespace="shop")
    redlock.bootstrap()
    lease = redlock.acquire("r")
    with pytest.raises(LockHeldError):
        redlock.acquire("r")
    assert lease.extend()
    assert lease.release()
    assert [entry for node in nodes3 for entry in ask(node.url, "ACL", "LOG") if "evalsha" in str(entry)] == []


def test_all_keys_are_below_the_namespace(trio: LocalNodes, make_redlock: Any) -> None:
    """L77: lock, marker and fencing counter."""
    redlock = make_redlock(trio, namespace="shop")
    redlock.bootstrap()
    redlock.acquire("r")
    assert happens(lambda: all(len(ask(node.url, "KEYS", "*")) == 3 for node in trio))
    assert all(key.startswith("shop:") for node in trio for key in ask(node.url, "KEYS", "*"))


def test_all_keys_but_the_marker_end(trio: LocalNodes, serving: Any) -> None:
    """L3 of the invariants: whatever is left behind, is not left for ever."""
    serving(trio).acquire("r")
    assert happens(lambda: all(len(ask(node.url, "KEYS", "*")) == 3 for node in trio))
    endless = {key for node in trio for key in ask(node.url, "KEYS", "*") if int(ask(node.url, "PTTL", key)) == -1}
    assert endless == {"redlock:marker"}


def test_password_is_never_shown(local_nodes: Any, make_redlock: Any, caplog: Any, events: list[Any]) -> None:
    """L79: not with a dead node, not with a wrong password; in no error, event, log line or repr."""
    caplog.set_level(logging.DEBUG)
    nodes = local_nodes(2, config={"requirepass": "another"})
    urls = [f"redis://user:{SECRET}@127.0.0.1:{node.port}" for node in nodes] + [f"redis://:{SECRET}@127.0.0.1:1"]
    told: list[str] = []

    def observer(event: Any) -> None:
        told.append(str(event))
        log_event(event)

    redlock = make_redlock(urls, observer=observer)
    with pytest.raises(RedlockError) as caught:
        redlock.acquire("r")
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    texts = [*map(str, chain), *map(repr, chain), repr(redlock), caplog.text, *told]
    assert told
    assert not [text for text in texts if SECRET in text]


def test_wrong_list_of_nodes_can_be_checked_before_use(local_nodes: Any) -> None:
    """What can never work is one SettingsError that names every such node; a node that is down is no such thing."""
    from redlock import Nodes

    right = local_nodes(1)
    wrong = local_nodes(1, config={"requirepass": "another"})
    nodes = Nodes([right[0].url, f"redis://:{SECRET}@127.0.0.1:{wrong[0].port}", "redis://127.0.0.1:1"])
    with pytest.raises(SettingsError) as caught:
        nodes.check()
    assert f"127.0.0.1:{wrong[0].port}" in str(caught.value)
    assert "127.0.0.1:1/" not in str(caught.value)
    nodes.close()
    down = Nodes([right[0].url, "redis://127.0.0.1:1"])
    down.check()
    down.close()


def test_closed_redlock_says_so(trio: LocalNodes, serving: Any) -> None:
    redlock: Redlock = serving(trio)
    redlock.close()
    redlock.close()
    with pytest.raises(SettingsError, match="closed"):
        redlock.acquire("r")
