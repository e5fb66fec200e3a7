"""Renewal on real nodes: a lease lives while its holder does, and its loss is told once, in time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from redlock import Lease, LeaseLost, LeaseLostError, Redlock, RedlockError
from redlock.local import LocalNodes
from tests.tools.peek import Stopwatch, ask, happens, lock_keys, values

NODE_TIMEOUT = 0.5


@pytest.fixture
def redlock(trio: LocalNodes, serving: Callable[..., Redlock]) -> Redlock:
    """A lock on three healthy nodes."""
    return serving(trio)


class Losses:
    """Notes when and how often it is called."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.causes: list[str | None] = []

    def __call__(self, lease: Lease) -> None:
        self.moments.append(time.monotonic())
        self.causes.append(lease.term.cause)


def test_lease_outlives_its_ttl_while_the_body_runs(redlock: Redlock, trio: LocalNodes) -> None:
    with redlock.lock("r", ttl=0.3) as lease:
        time.sleep(0.7)
        lease.check()
        assert values(trio, "r") == [lease.token] * 3
    assert happens(lambda: lock_keys(trio) == [])


def test_release_wins_against_renewal(redlock: Redlock, trio: LocalNodes) -> None:
    """L43: renewed every few milliseconds, no key comes back after a release, five hundred times."""
    for _ in range(500):
        with contextlib.suppress(LeaseLostError), redlock.lock("r", ttl=0.03, wait=5.0):
            time.sleep(0.001)
    time.sleep(0.01)
    left = [int(ask(node.url, "PTTL", "redlock:lock:r")) for node in trio]
    assert left == [-2] * 3


def test_long_keys_show_what_a_late_renewal_would_leave(redlock: Redlock, trio: LocalNodes) -> None:
    """L43: with a ttl of seconds a key that came back would still be there; five hundred times none does."""
    for number in range(500):
        lease = redlock.acquire(f"r{number}", ttl=20.0)
        lease.term.renew_at = 0.0  # due at once: the renewer is at it while we release
        redlock._renewer.add(lease)
        lease.release()
    assert happens(lambda: lock_keys(trio) == [], within=0.5)
    time.sleep(0.1)
    assert lock_keys(trio) == []


def test_failed_renewal_is_tried_again(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """L45: an outage shorter than the validity that is left costs nothing."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    losses = Losses()
    with redlock.lock("r", ttl=1.2, on_lost=losses) as lease:
        for proxy in proxies:
            proxy.set("refuse")
        time.sleep(0.6)
        for proxy in proxies:
            proxy.set("pass")
        time.sleep(1.0)
        lease.check()
    assert losses.moments == []


@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_loss_is_told_once_and_in_time(
    nodes3: LocalNodes, serving: Any, proxied: Any, events: list[Any], fault: str
) -> None:
    """L45: renewal is tried until the validity ends; then one call with the cause, not a node's time-out later."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    losses = Losses()
    with pytest.raises(LeaseLostError), redlock.lock("r", ttl=1.0, on_lost=losses) as lease:  # noqa: PT012
        for proxy in proxies:
            proxy.set(fault, kill_connections=True) if fault == "hang" else proxy.set(fault)
        end = time.monotonic() + lease.validity
        time.sleep(lease.validity + 0.3)
        assert lease.lost
        assert len(losses.moments) == 1
        assert 0.0 <= losses.moments[0] - end < 0.15
    time.sleep(0.1)
    assert len(losses.moments) == 1
    assert losses.causes[0]
    assert [event.resource for event in events if isinstance(event, LeaseLost)] == ["r"]


def test_broken_callback_harms_no_other_lease(nodes3: LocalNodes, serving: Any, caplog: Any) -> None:
    """L45: what a callback raises is logged, and the renewing thread goes on."""
    redlock = serving(nodes3)

    def broken(_lease: Lease) -> None:
        raise RuntimeError("callback")

    with redlock.lock("kept", ttl=0.6) as kept:
        with contextlib.suppress(LeaseLostError), redlock.lock("lost", ttl=0.3, on_lost=broken) as lost:
            for node in nodes3:
                ask(node.url, "SET", "redlock:lock:lost", "x")
            assert happens(lambda: lost.lost)
            time.sleep(0.8)
        kept.check()
    assert "callback" in caplog.text


def test_slow_callback_harms_no_other_lease(redlock: Redlock, trio: LocalNodes) -> None:
    """A callback that takes its time must not cost others theirs."""
    with redlock.lock("kept", ttl=0.6) as kept:
        with (
            contextlib.suppress(LeaseLostError),
            redlock.lock("lost", ttl=0.3, on_lost=lambda _: time.sleep(1.0)) as lost,
        ):
            for node in trio:
                ask(node.url, "SET", "redlock:lock:lost", "x")
            assert happens(lambda: lost.lost)
            time.sleep(0.9)
        kept.check()


def test_abandoned_lock_ends(redlock: Redlock, trio: LocalNodes) -> None:
    """L47: nobody holds the object any more: its key is gone within its ttl."""
    manager = redlock.lock("r", ttl=0.5)
    manager.__enter__()
    del manager
    gc.collect()
    assert happens(lambda: lock_keys(trio) == [], within=0.6)
    assert len(redlock._renewer) == 0


def test_lease_that_is_not_renewed_ends_by_itself(redlock: Redlock, trio: LocalNodes) -> None:
    """L47: acquire alone renews nothing."""
    redlock.acquire("r", ttl=0.3)
    gc.collect()
    assert happens(lambda: lock_keys(trio) == [], within=0.6)


def test_loss_within_the_body_is_seen_there_and_after_it(redlock: Redlock, trio: LocalNodes) -> None:
    """L48: check tells the body; leaving it raises at once, and retries nothing."""
    watch = None
    with pytest.raises(LeaseLostError), redlock.lock("r", ttl=0.3) as lease:  # noqa: PT012
        for node in trio:
            ask(node.url, "SET", "redlock:lock:r", "x", "PX", "5000")
        assert happens(lambda: lease.lost, within=1.0)
        watch = Stopwatch()
    assert watch is not None
    assert watch.seconds < 0.1
    assert values(trio, "r") == ["x"] * 3


def test_error_of_the_body_is_not_hidden_by_the_loss(redlock: Redlock, trio: LocalNodes) -> None:
    """L48: LeaseLostError only where the body raised nothing itself."""
    with pytest.raises(ZeroDivisionError), redlock.lock("r", ttl=0.3) as lease:  # noqa: PT012
        for node in trio:
            ask(node.url, "SET", "redlock:lock:r", "x", "PX", "5000")
        assert happens(lambda: lease.lost, within=1.0)
        raise ZeroDivisionError


def test_error_of_the_body_is_not_hidden_by_an_outage(nodes3: LocalNodes, serving: Any) -> None:
    """L48: the nodes die under the lock; what the body raised comes out, and in time."""
    redlock = serving(nodes3)
    with pytest.raises(ZeroDivisionError), redlock.lock("r", ttl=5.0):  # noqa: PT012
        for node in nodes3:
            node.kill()
        watch = Stopwatch()
        raise ZeroDivisionError
    assert watch.seconds < 2 * NODE_TIMEOUT


def test_release_in_the_body_is_no_loss(redlock: Redlock) -> None:
    """Released early, the lease is not lost when the time would have been over."""
    with redlock.lock("r", ttl=0.2) as lease:
        assert lease.release()
        time.sleep(0.3)


def test_interpreter_that_was_blocked_shows_the_loss_at_once(redlock: Redlock) -> None:
    """L51: for twice the ttl no other thread could run; the first look afterwards already says lost."""
    sleep = ctypes.PyDLL(None).usleep  # PyDLL keeps the interpreter's lock
    with contextlib.suppress(LeaseLostError), redlock.lock("r", ttl=0.3) as lease:
        sleep(600_000)
        assert lease.lost
        assert lease.remaining() == 0.0
        with pytest.raises(LeaseLostError):
            lease.check()


def test_cap_ends_renewal(redlock: Redlock, trio: LocalNodes) -> None:
    """A holder that hangs does not hold for ever."""
    losses = Losses()
    with pytest.raises(LeaseLostError), redlock.lock("r", ttl=0.3, max_hold=0.5, on_lost=losses):  # noqa: PT012
        assert happens(lambda: losses.moments, within=1.5)
        assert happens(lambda: lock_keys(trio) == [], within=0.5)


def test_many_leases_are_renewed_by_one_thread(redlock: Redlock) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        leases = [stack.enter_context(redlock.lock(f"r{number}", ttl=0.6)) for number in range(50)]
        assert threading.active_count() <= before + 1
        time.sleep(1.0)
        assert not [lease for lease in leases if lease.lost]


def test_closing_ends_renewal_and_says_so(redlock: Redlock) -> None:
    """After close nothing is extended any more, and nothing is promised either."""
    with contextlib.suppress(RedlockError), redlock.lock("r", ttl=0.3) as lease:
        redlock.close()
        time.sleep(0.35)
        assert lease.lost
