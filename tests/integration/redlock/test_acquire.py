"""Acquiring on real nodes: a minority may be down, slow or lost in the net, and nothing stays behind."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import tenacity

from redlock import LockHeldError, NodeDown, QuorumUnreachableError, Redlock
from redlock.local import LocalNodes
from tests.tools.fault_proxy import FaultProxy
from tests.tools.peek import Stopwatch, ask, happens, lock_keys, values

NODE_TIMEOUT = 0.5
"""The default; what takes less did not wait for it."""


@pytest.fixture
def redlock(trio: LocalNodes, serving: Callable[..., Redlock]) -> Redlock:
    """A lock on three healthy nodes."""
    return serving(trio)


# -- nodes that are down


def test_one_dead_node_of_three_changes_nothing(nodes3: LocalNodes, serving: Any, events: list[Any]) -> None:
    """L01: acquired at once with nearly all of its validity; the dead node is named."""
    redlock = serving(nodes3)
    nodes3[2].kill()
    watch = Stopwatch()
    lease = redlock.acquire("r")
    assert watch.seconds < NODE_TIMEOUT
    assert 4.4 < lease.validity <= 4.948
    assert values(nodes3[:2], "r") == [lease.token] * 2
    assert [event.node for event in events if isinstance(event, NodeDown)] == [f"127.0.0.1:{nodes3[2].port}/0"]


def test_release_with_a_dead_node_frees_the_others(nodes3: LocalNodes, serving: Any) -> None:
    """L02: both keys are gone and the next acquire succeeds at once, not after the ttl."""
    redlock = serving(nodes3)
    nodes3[2].kill()
    assert redlock.acquire("r").release()
    assert lock_keys(nodes3[:2]) == []
    watch = Stopwatch()
    redlock.acquire("r")
    assert watch.seconds < NODE_TIMEOUT


def test_unreachable_quorum_is_not_contention(nodes3: LocalNodes, serving: Any) -> None:
    """L03: the error names both dead nodes, and the node that granted keeps nothing."""
    redlock = serving(nodes3)
    for node in nodes3[1:]:
        node.kill()
    with pytest.raises(QuorumUnreachableError) as caught:
        redlock.acquire("r")
    assert set(caught.value.causes) == {f"127.0.0.1:{node.port}/0" for node in nodes3[1:]}
    assert happens(lambda: values(nodes3[:1], "r") == [None])


def test_refused_connections_are_no_reason_to_wait(nodes3: LocalNodes, serving: Any) -> None:
    """All votes are there at once: nobody waits for a time-out."""
    redlock = serving(nodes3)
    for node in nodes3[1:]:
        node.kill()
    with contextlib.suppress(QuorumUnreachableError):
        redlock.acquire("warm-up: the first call finds the connections broken")
    watch = Stopwatch()
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("r")
    assert watch.seconds < NODE_TIMEOUT * 0.8


def test_waiting_for_a_quorum_ends_in_time(nodes3: LocalNodes, serving: Any) -> None:
    """L04: two of three down, one second to wait: an outage is reported after that second and one round at most."""
    redlock = serving(nodes3)
    for node in nodes3[1:]:
        node.kill()
    watch = Stopwatch()
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("r", wait=1.0)
    assert 1.0 <= watch.seconds < 1.0 + 2 * NODE_TIMEOUT


def test_quorum_is_that_of_the_configured_nodes(trio: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """L07: with three of five unresolvable the two others are no quorum; the constructor does not mind."""
    serving(trio)
    redlock = make_redlock([*trio.urls[:2], *(f"redis://no-such-host-{number}.invalid" for number in range(3))])
    with pytest.raises(QuorumUnreachableError) as caught:
        redlock.acquire("r")
    assert sum("no-such-host" in node for node in caught.value.causes) == 3
    assert happens(lambda: lock_keys(trio) == [])


def test_client_with_retries_of_its_own_costs_no_seconds(trio: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """L09: redis-py's clients retry a refused connection for seconds; given to us they are only configuration."""
    serving(trio)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in [*trio.urls[:2], "redis://127.0.0.1:1"]]
        watch = Stopwatch()
        make_redlock(clients).acquire("r")
        assert watch.seconds < 2 * NODE_TIMEOUT


# -- nodes that are slow


def redlock_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("redlock")]


def test_hung_node_costs_no_latency_and_no_threads(nodes3: LocalNodes, serving: Any) -> None:
    """L08: a hundred cycles with one node stopped take less than one time-out each, and no thread more at any time."""
    redlock = serving(nodes3)
    redlock.acquire("warm-up").release()
    assert happens(lambda: len(redlock_threads()) == 1), "the others opened the first connections"
    nodes3[2].pause()
    durations, threads = [], set()
    for _ in range(100):
        watch = Stopwatch()
        lease = redlock.acquire("r")
        lease.release()
        durations.append(watch.seconds)
        threads.add(len(redlock_threads()))
    for _ in range(30):  # and while it is tried again, and owed the releases
        time.sleep(0.02)
        threads.add(len(redlock_threads()))
    assert threads == {1}
    assert sorted(durations)[90] < 0.06
    assert max(durations) < NODE_TIMEOUT
    nodes3[2].resume()


def test_first_call_with_a_hung_node(nodes3: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """L08: also where the connections are yet to be opened, the other two are enough."""
    serving(nodes3)
    nodes3[2].pause()
    watch = Stopwatch()
    assert make_redlock(nodes3).acquire("r").validity > 4.0
    assert watch.seconds < NODE_TIMEOUT
    nodes3[2].resume()


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_call_ends_in_time_whatever_the_nodes_do(
    nodes3: LocalNodes, serving: Any, make_redlock: Any, warm: Any
) -> None:
    """All nodes hang: one attempt costs one time-out, with open connections or without; the undo adds none."""
    redlock = serving(nodes3)
    if not warm:
        redlock = make_redlock(nodes3)
    for node in nodes3:
        node.pause()
    watch = Stopwatch()
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("r")
    assert watch.seconds < NODE_TIMEOUT * 1.6
    for node in nodes3:
        node.resume()


def test_ttl_shorter_than_the_nodes_time_out_is_still_worth_something(nodes3: LocalNodes, serving: Any) -> None:
    """A round waits for no more of a lease than it can afford to lose."""
    redlock = serving(nodes3, node_timeout=2.0)
    nodes3[2].pause()
    assert redlock.acquire("r", ttl=0.4).validity > 0.1
    nodes3[1].pause()
    watch = Stopwatch()
    with pytest.raises(QuorumUnreachableError):
        redlock.acquire("other", ttl=0.4)
    assert watch.seconds < 1.0
    for node in nodes3[1:]:
        node.resume()


# -- nothing stays behind


def test_attempt_that_timed_out_leaves_nothing(nodes3: LocalNodes, serving: Any) -> None:
    """L14: two nodes wake up with our request before them; the undo stands right behind it, twenty times of twenty."""
    redlock = serving(nodes3, node_timeout=0.1, pause=tenacity.wait_none())
    for round_ in range(20):
        assert redlock.acquire("warm-up", wait=2.0).release()
        for node in nodes3[1:]:
            node.pause()
        with pytest.raises(QuorumUnreachableError):
            redlock.acquire(f"r{round_}", ttl=30.0)
        for node in nodes3[1:]:
            node.resume()
        assert happens(lambda: ask(nodes3[1].url, "PING") and ask(nodes3[2].url, "PING"))
        assert happens(lambda: lock_keys(nodes3) == [], within=0.5)


def test_minority_of_a_winner_is_released_too(nodes3: LocalNodes, serving: Any) -> None:
    """L15: acquired and released while one node was stopped: when it wakes, nothing is held there, twenty of twenty."""
    redlock = serving(nodes3)
    for round_ in range(20):
        assert redlock.acquire("warm-up", wait=2.0).release()
        nodes3[2].pause()
        assert redlock.acquire(f"r{round_}", ttl=30.0).release()
        time.sleep(0.015 * round_)
        nodes3[2].resume()
        assert happens(lambda: values(nodes3[2:], f"r{round_}") == [None], within=0.5)  # noqa: B023 - called at once


def test_minority_that_was_gone_is_released_when_it_is_back(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """L15: the node granted, its connection broke, and the lease was released meanwhile: it is told later."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    lease = redlock.acquire("r", ttl=30.0)
    assert happens(lambda: values(nodes3, "r") == [lease.token] * 3)
    proxies[2].set("refuse")
    assert lease.release()
    assert values(nodes3[2:], "r") == [lease.token]
    proxies[2].set("pass")
    assert happens(lambda: values(nodes3[2:], "r") == [None], within=3.0)


def test_reply_that_was_lost_is_not_contention(nodes3: LocalNodes, serving: Any) -> None:
    """L19: the node executed, we never heard: no quorum, never "held" by our own token, and the key goes."""
    node = nodes3[0]
    with FaultProxy("127.0.0.1", node.port) as proxy:
        redlock = serving([proxy.url], node_timeout=0.2)
        proxy.set("drop_replies")
        with pytest.raises(QuorumUnreachableError):
            redlock.acquire("r", ttl=30.0)
        assert proxy.observed["drop_replies"]
        proxy.set("pass")
        assert happens(lambda: values([node], "r") == [None])
        assert redlock.acquire("r", wait=2.0).validity > 0


def test_retry_after_a_lost_reply_wins(nodes3: LocalNodes, serving: Any) -> None:
    """L19: the next attempt has a token of its own, and finds the key of the first one gone."""
    with FaultProxy("127.0.0.1", nodes3[0].port) as proxy:
        redlock = serving([proxy.url], node_timeout=0.2)
        proxy.set("drop_replies")
        heal = threading.Timer(0.3, proxy.set, ["pass"])
        heal.start()
        lease = redlock.acquire("r", ttl=30.0, wait=3.0)
        heal.join()
        assert values(nodes3[:1], "r") == [lease.token]


def test_interrupted_acquire_leaves_nothing(nodes3: LocalNodes, serving: Any) -> None:
    """An exception out of nowhere in mid-reply, as a job's time limit raises it: undone, and the next reply is ours."""
    redlock = serving(nodes3, node_timeout=2.0)
    redlock.acquire("warm-up").release()
    for node in nodes3[1:]:
        node.pause()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            redlock.acquire("r", ttl=30.0)
        except BaseException as error:  # noqa: BLE001 - it is what is tested
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    _raise_in(thread, TimeoutError)
    thread_watch = Stopwatch()
    for node in nodes3[1:]:
        node.resume()
    thread.join(5.0)
    assert thread_watch.seconds < 2.0
    assert [type(error) for error in caught] in ([TimeoutError], [])
    if caught:
        assert happens(lambda: lock_keys(nodes3) == [], within=1.0)
    lease = redlock.acquire("other", wait=2.0)
    assert happens(lambda: values(nodes3, "other").count(lease.token) >= 2)


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    import ctypes

    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def test_late_reply_is_never_taken_for_the_next_one(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """S6: the slowest node's replies always come after the others have decided; each still meets its own question."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    redlock.acquire("held by somebody", ttl=30.0)
    proxies[2].set("delay", 0.0, 0.05)
    for number in range(40):
        if number % 2:
            with pytest.raises(LockHeldError):
                redlock.acquire("held by somebody")
        else:
            assert redlock.acquire(f"r{number}").release()
    proxies[0].set("refuse")  # now the slow node decides
    for number in range(5):
        with pytest.raises(LockHeldError):
            redlock.acquire("held by somebody")
        assert redlock.acquire(f"s{number}").release()
    assert proxies[2].observed["delay"]


# -- contention


def test_held_lock_is_refused_at_once(redlock: Redlock) -> None:
    """L67: one attempt, no pause after it; the error tells when to come back."""
    redlock.acquire("r", ttl=5.0)
    watch = Stopwatch()
    with pytest.raises(LockHeldError) as caught:
        redlock.acquire("r")
    assert watch.seconds < NODE_TIMEOUT
    assert caught.value.retry_after is not None
    assert 4.0 < caught.value.retry_after <= 5.0


def test_same_owner_is_refused_too_and_keeps_its_lease(redlock: Redlock, trio: LocalNodes) -> None:
    """L61: a lock is not reentrant; the refused second attempt does not destroy the first one's keys."""
    lease = redlock.acquire("r")
    with pytest.raises(LockHeldError):
        redlock.acquire("r")
    assert happens(lambda: values(trio, "r") == [lease.token] * 3)
    assert lease.release()
    assert happens(lambda: lock_keys(trio) == [])


def test_waiting_does_not_lengthen_the_lease(redlock: Redlock, trio: LocalNodes) -> None:
    """L53: blocked for some rounds, the lease that follows lives for its ttl and no longer."""
    redlock.acquire("r", ttl=0.3)
    lease = redlock.acquire("r", ttl=10.0, wait=5.0)
    assert happens(lambda: values(trio, "r") == [lease.token] * 3)
    assert all(0 < int(ask(node.url, "PTTL", "redlock:lock:r")) <= 10_000 for node in trio)


def test_lock_without_a_ttl_is_one_all_the_same(redlock: Redlock, trio: LocalNodes) -> None:
    """L81: None means the default; two acquires are never both granted, and the keys end."""
    lease = redlock.acquire("r", ttl=None)
    with pytest.raises(LockHeldError):
        redlock.acquire("r", ttl=None)
    assert happens(lambda: values(trio, "r") == [lease.token] * 3)
    assert all(0 < int(ask(node.url, "PTTL", "redlock:lock:r")) <= 5_000 for node in trio)


def test_body_never_runs_without_the_lock(redlock: Redlock) -> None:
    """L57: contention is raised on entering."""
    redlock.acquire("r")
    ran = False
    with pytest.raises(LockHeldError), redlock.lock("r"):
        ran = True
    assert not ran


def test_threads_that_share_a_redlock_exclude_each_other(redlock: Redlock) -> None:
    """L62: an unsynchronised counter under the lock ends at 400, two times 200; there is never a second holder."""
    counter = holders = most = 0
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal counter, holders, most
        try:
            for _ in range(200):
                with redlock.lock("r", ttl=5.0, wait=15.0):
                    holders += 1
                    most = max(most, holders)
                    seen = counter
                    time.sleep(0)
                    counter = seen + 1
                    holders -= 1
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (counter, most) == (400, 1)


def test_some_client_always_wins(trio: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """Clients that split the votes do not meet for ever: each of five gets its turn."""
    clients = [serving(trio)] + [make_redlock(trio) for _ in range(4)]
    done: list[int] = []

    def work(number: int) -> None:
        clients[number].acquire("r", wait=10.0).release()
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3, 4]


# -- what goes over the wire


def test_key_is_born_with_its_end(redlock: Redlock, trio: LocalNodes) -> None:
    """L23: SET with PX in one script; there is no moment at which the key has no ttl."""
    with redis.Redis.from_url(trio.urls[0], decode_responses=True) as client, client.monitor() as monitor:
        redlock.acquire("r", ttl=5.0)
        seen = [
            line["command"]
            for line in itertools.takewhile(lambda line: "STOP" not in line["command"], _lines(monitor, trio.urls[0]))
        ]
    writes = [command for command in seen if "redlock:lock:r" in command and not command.upper().startswith("EVAL")]
    assert any(command.upper().startswith("SET ") and " PX " in command.upper() for command in writes), writes
    assert not any(command.upper().startswith(("SETNX", "EXPIRE", "PEXPIRE")) for command in writes), writes
    assert all(0 < int(ask(node.url, "PTTL", "redlock:lock:r")) <= 5_000 for node in trio)


def _lines(monitor: Any, url: str) -> Any:
    ask(url, "ECHO", "STOP")
    return iter(monitor.next_command, None)


@pytest.mark.parametrize(
    "options",
    [{"protocol": 2}, {"protocol": 3}, {"decode_responses": True, "protocol": 3}, {"decode_responses": True}],
    ids=str,
)
def test_clients_of_any_dialect_are_configuration(
    trio_on_each_server: LocalNodes, serving: Any, make_redlock: Any, options: Any
) -> None:
    """L58: RESP3 and decoded replies: the full cycle works; on one node of three, and on all."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(url, **options)) for url in trio_on_each_server.urls]
        serving(trio_on_each_server)
        redlock = make_redlock([clients[0], *trio_on_each_server.urls[1:]])
        for name, each in {"mixed": redlock, "all alike": make_redlock(clients)}.items():
            lease = each.acquire(name)
            assert happens(lambda: values(trio_on_each_server, name) == [lease.token] * 3)  # noqa: B023 - called at once
            assert lease.extend()
            with pytest.raises(LockHeldError):
                each.acquire(name)
            assert lease.release()


@pytest.mark.parametrize("resource", ["new\r\nline", "nul\0", "{tag}", "*", "über 🔒", "k" * 1024])
def test_any_name_is_stored_as_it_is(redlock: Redlock, trio: LocalNodes, resource: str) -> None:
    lease = redlock.acquire(resource)
    assert happens(lambda: values(trio, resource) == [lease.token] * 3)
    assert redlock.acquire(resource + "x" if len(resource) < 1024 else "x").release()
    assert lease.release()


# -- idle connections


def test_connections_that_servers_closed_while_idle_cost_no_attempt(trio: LocalNodes, serving: Any) -> None:
    """A firewall, a proxy or the server's own `timeout` closes what is idle; the next call opens it again."""
    redlock = serving(trio)
    redlock.acquire("warm-up").release()
    for node in trio:
        ask(node.url, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(0.05)
    assert redlock.acquire("r").validity > 4.0


def test_closed_redlock_leaves_no_connection_and_no_thread(trio: LocalNodes, make_redlock: Any) -> None:
    """L3 of the invariants: after close the servers see nobody of ours."""
    before, threads = [_clients(node) for node in trio], threading.active_count()
    redlock = make_redlock(trio)
    redlock.bootstrap()
    with redlock.lock("r"):
        pass
    redlock.close()
    assert happens(lambda: [_clients(node) for node in trio] == before)
    assert happens(lambda: threading.active_count() <= threads)


def _clients(node: Any) -> int:
    return len(ask(node.url, "CLIENT", "LIST", "TYPE", "normal"))
