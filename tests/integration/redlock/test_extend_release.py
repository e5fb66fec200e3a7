"""Extending and releasing on real nodes: only what is ours, only while it is ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from redlock import LeaseLostError, LockHeldError, NodeDown, Redlock
from redlock.local import LocalNodes
from redlock.scripts import UNDO
from tests.tools.peek import Stopwatch, ask, happens, lock_keys, values

NODE_TIMEOUT = 0.5


@pytest.fixture
def redlock(trio: LocalNodes, serving: Callable[..., Redlock]) -> Redlock:
    """A lock on three healthy nodes."""
    return serving(trio)


# -- validity


def test_validity_ends_without_any_call(redlock: Redlock) -> None:
    """L32: the lease itself knows when it is over."""
    lease = redlock.acquire("r", ttl=0.2)
    assert 0.0 < lease.validity <= 0.196
    time.sleep(0.2)
    assert (lease.validity, lease.remaining(), lease.lost) == (0.0, 0.0, True)
    with pytest.raises(LeaseLostError):
        lease.check()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_wall_clock_that_jumps_changes_no_validity(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """L29: an hour back or forth during the round: validity is measured on another clock."""
    real = time.time
    calls = iter(range(1_000_000))
    monkeypatch.setattr(time, "time", lambda: real() + (jump if next(calls) else 0.0))
    assert 1.4 < redlock.acquire("r", ttl=2.0).validity <= 1.978


def test_extension_gives_the_full_ttl_again(redlock: Redlock, trio: LocalNodes) -> None:
    """L40: validity is that of the new round, on the nodes too."""
    lease = redlock.acquire("r", ttl=2.0)
    time.sleep(0.5)
    assert lease.validity < 1.5
    assert lease.extend()
    assert 1.6 < lease.validity <= 1.978
    assert happens(lambda: all(int(ask(node.url, "PTTL", "redlock:lock:r")) > 1_600 for node in trio), within=0.3)


def test_extension_never_shortens_a_key(redlock: Redlock, trio: LocalNodes) -> None:
    """S5: a node on which the key lives longer keeps it so."""
    lease = redlock.acquire("r", ttl=2.0)
    assert happens(lambda: None not in values(trio, "r"))
    for node in trio:
        ask(node.url, "PEXPIRE", "redlock:lock:r", 60_000)
    assert lease.extend()
    assert all(int(ask(node.url, "PTTL", "redlock:lock:r")) > 50_000 for node in trio)


def test_extension_that_is_answered_too_late_is_none(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """L39: every node extends, but the replies come when the validity is over: False, and lost."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies], node_timeout=2.0)
    lease = redlock.acquire("r", ttl=0.8)
    time.sleep(0.55)
    for proxy in proxies:
        proxy.set("delay", 0.0, 0.3)
    assert not lease.extend()
    assert happens(lambda: lease.lost, within=0.3)
    assert lease.validity == 0.0
    assert not lease.release()
    assert all(proxy.observed["delay"] for proxy in proxies)


# -- not ours any more


def test_extension_never_revives(redlock: Redlock, trio: LocalNodes) -> None:
    """L37: expired, taken and released by another: the first holder's extend writes nothing."""
    lease = redlock.acquire("r", ttl=0.2)
    time.sleep(0.25)
    assert redlock.acquire("r").release()
    assert not lease.extend()
    assert lease.lost
    time.sleep(0.05)
    assert lock_keys(trio) == []


def test_stolen_lock_is_neither_extended_nor_deleted(redlock: Redlock, trio: LocalNodes) -> None:
    """L38: somebody wrote another value over it."""
    lease = redlock.acquire("r")
    assert happens(lambda: None not in values(trio, "r"))
    for node in trio:
        ask(node.url, "SET", "redlock:lock:r", "x")
    assert not lease.extend()
    assert lease.lost
    assert not lease.release()
    assert values(trio, "r") == ["x"] * 3


def test_release_of_an_expired_lease_keeps_the_next_holders_key(redlock: Redlock, trio: LocalNodes) -> None:
    """L55: the late release of the first holder touches nothing of the second."""
    first = redlock.acquire("r", ttl=0.2)
    time.sleep(0.25)
    second = redlock.acquire("r", ttl=5.0)
    assert not first.release()
    assert happens(lambda: values(trio, "r") == [second.token] * 3)
    assert second.release()


def test_release_after_the_end_returns_at_once(redlock: Redlock) -> None:
    """L54: no retry for what is gone, and a second release is a no-op."""
    lease = redlock.acquire("r", ttl=0.2)
    time.sleep(0.25)
    watch = Stopwatch()
    assert not lease.release()
    assert not lease.release()
    assert watch.seconds < 0.1


def test_second_release_does_nothing(redlock: Redlock, trio: LocalNodes) -> None:
    """L54: also not to the next holder of the same object's resource."""
    lease = redlock.acquire("r")
    assert lease.release()
    other = redlock.acquire("r", wait=1.0)
    assert not lease.release()
    assert not lease.extend()
    with pytest.raises(LeaseLostError, match="released"):
        lease.check()
    assert happens(lambda: values(trio, "r").count(other.token) >= 2)


@pytest.mark.parametrize("early", [0, 1], ids="undone on {} node before".format)
def test_undo_that_comes_late_leaves_a_key_that_is_counted_on(
    trio_on_each_server: LocalNodes, serving: Any, early: int
) -> None:
    """L14: a grant was not heard of, other nodes won; the undo comes when an extension or a heal counts on it."""
    nodes = trio_on_each_server
    lease = serving(nodes).acquire("r", ttl=10.0)
    assert happens(lambda: None not in values(nodes, "r"))
    late = ("EVAL", UNDO.text, 1, "redlock:lock:r", lease.token)
    for node in list(nodes)[:early]:
        assert ask(node.url, *late) == [1], "before, it takes the key back"
    assert happens(lambda: lease.extend() and None not in values(nodes, "r")), (
        "a quorum may answer before the node does"
    )
    assert [ask(node.url, *late) for node in nodes] == [[0]] * 3
    assert lease.extend()
    assert lease.release()
    assert values(nodes, "r") == [None] * 3


# -- nodes that forget, fail or know no scripts


def test_extension_heals_a_node_that_forgot(nodes3: LocalNodes, serving: Any) -> None:
    """L42: one node after the other loses the key; each gets it back, so the lease outlives both."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r", ttl=10.0)
    assert happens(lambda: values(nodes3, "r") == [lease.token] * 3)
    for node in nodes3[1:]:
        node.restart(wipe=True)
        assert lease.extend()
        assert happens(lambda: lease.extend() and values([node], "r") == [lease.token])  # noqa: B023 - called at once
    assert values(nodes3, "r") == [lease.token] * 3
    assert not lease.lost


def test_healed_node_does_not_count_in_the_same_round(nodes3: LocalNodes, serving: Any) -> None:
    """L42: two nodes were emptied at once: that round is no extension, though every node has the key afterwards."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r", ttl=10.0)
    for node in nodes3[1:]:
        ask(node.url, "DEL", "redlock:lock:r")
    time.sleep(0.05)
    for node in nodes3[1:]:
        ask(node.url, "DEL", "redlock:lock:r")
    assert not lease.extend()
    assert happens(lambda: values(nodes3, "r") == [lease.token] * 3, within=0.5)
    assert lease.extend()


def test_forgotten_scripts_are_sent_again(redlock: Redlock, trio: LocalNodes) -> None:
    """L17: SCRIPT FLUSH between any two steps is never seen outside, in this cycle and in the next."""
    for _ in range(2):
        _flush_scripts(trio)
        lease = redlock.acquire("r", wait=1.0)
        _flush_scripts(trio)
        assert lease.extend()
        _flush_scripts(trio)
        assert lease.release()


def _flush_scripts(nodes: LocalNodes) -> None:
    for node in nodes:
        ask(node.url, "SCRIPT", "FLUSH")


def test_script_that_is_sent_again_late_does_not_undo_a_release(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """L17: the slowest node knew no script for an extension that was decided without it; then came the release."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    lease = redlock.acquire("r", ttl=10.0)
    assert happens(lambda: None not in values(nodes3, "r"))
    assert lease.extend()
    time.sleep(0.05)
    ask(nodes3[2].url, "SCRIPT", "FLUSH")
    proxies[2].set("delay", 0.0, 0.1)
    assert lease.extend()
    assert lease.release()
    proxies[2].set("pass")
    redlock.acquire("keeps the connections busy while the late reply comes", wait=1.0)
    time.sleep(0.15)
    redlock.acquire("and once more", wait=1.0)
    time.sleep(0.05)
    assert values(nodes3, "r") == [None] * 3


def test_release_with_a_dead_node_says_so(nodes3: LocalNodes, serving: Any, events: list[Any]) -> None:
    """L60: a quorum was released: True, and the node is named to the observer."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r")
    nodes3[2].kill()
    assert lease.release()
    assert happens(
        lambda: redlock.acquire("other", wait=1.0).release() and any(isinstance(event, NodeDown) for event in events)
    )
    assert {event.node for event in events if isinstance(event, NodeDown)} == {f"127.0.0.1:{nodes3[2].port}/0"}


def test_release_with_all_nodes_dead_is_not_swallowed(nodes3: LocalNodes, serving: Any, events: list[Any]) -> None:
    """L60: False, and every node is named to the observer."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r")
    for node in nodes3:
        node.kill()
    assert not lease.release()
    assert len({event.node for event in events if isinstance(event, NodeDown)}) == 3


def test_release_that_was_interrupted_can_be_repeated(redlock: Redlock, trio: LocalNodes, monkeypatch: Any) -> None:
    """L22: whatever stops it, afterwards the key is gone or release succeeds; never locked and nobody's."""
    lease = redlock.acquire("r", ttl=30.0)
    assert happens(lambda: None not in values(trio, "r"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(redlock._nodes._fanout, "ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.release()
    assert lease.release()
    assert happens(lambda: lock_keys(trio) == [])


def test_lock_on_one_node(local_nodes: Any, serving: Any) -> None:
    """N=1: the whole cycle; surviving its loss is all that is missing."""
    nodes = local_nodes(1)
    redlock = serving(nodes)
    lease = redlock.acquire("r")
    with pytest.raises(LockHeldError):
        redlock.acquire("r")
    assert lease.extend()
    assert lease.release()
    assert lock_keys(nodes) == []
