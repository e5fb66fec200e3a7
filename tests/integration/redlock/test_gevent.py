"""The thread driver on greenlets: a program that patches the standard library first, as gevent workers do."""

from __future__ import annotations

import importlib.util
import os

import pytest

from redlock.local import LocalNodes
from tests.tools.peek import happens, lock_keys, run_python, start_python

PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys, time
import gevent
from redlock import Redlock
urls = sys.argv[1:]
quiet = lambda event: None
"""


@pytest.fixture(autouse=True)
def _gevent_is_there() -> None:
    if importlib.util.find_spec("gevent") is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("gevent is not installed, and CI has to test it", pytrace=False)
        pytest.skip("gevent is not installed: pip install gevent")


def run(code: str, nodes: LocalNodes, timeout: float = 18.0) -> list[str]:
    """Run a patched program on the nodes and return the words that it printed."""
    return run_python(PATCHED + code, *nodes.urls, timeout=timeout).split()


def test_sixteen_greenlets_exclude_each_other(trio: LocalNodes, serving: object) -> None:
    """L62: a counter that nothing else protects loses no step; at most one of them is inside."""
    serving(trio)
    code = """
redlock = Redlock(urls, ttl=5.0, observer=quiet)
counter = inside = most = 0

def add(rounds):
    global counter, inside, most
    for _ in range(rounds):
        lease = redlock.acquire("r", wait=15.0)
        inside += 1
        most = max(most, inside)
        seen = counter
        gevent.sleep(0.001)
        counter = seen + 1
        inside -= 1
        lease.check()
        assert lease.release()

greenlets = [gevent.spawn(add, 4) for _ in range(16)]
gevent.joinall(greenlets, raise_error=True)
print(counter, most)
redlock.close()
"""
    assert run(code, trio) == ["64", "1"]
    assert happens(lambda: lock_keys(trio) == [])


def test_sixteen_greenlets_have_a_lock_each(trio: LocalNodes, serving: object) -> None:
    """They share the connections, and none gets an answer that is another's."""
    serving(trio)
    code = """
redlock = Redlock(urls, ttl=5.0, observer=quiet)

def work(name):
    for _ in range(30):
        lease = redlock.acquire(name)
        gevent.sleep(0)
        assert lease.release()
    return 30

greenlets = [gevent.spawn(work, f"r{number}") for number in range(16)]
gevent.joinall(greenlets, raise_error=True)
print(sum(greenlet.value for greenlet in greenlets))
redlock.close()
"""
    assert run(code, trio) == ["480"]
    assert happens(lambda: lock_keys(trio) == [])


def test_leases_are_renewed_while_greenlets_sleep(trio: LocalNodes, serving: object) -> None:
    serving(trio)
    code = """
redlock = Redlock(urls, ttl=0.4, observer=quiet)

def hold(name):
    with redlock.lock(name) as lease:
        gevent.sleep(1.2)
        lease.check()
        return "kept"

greenlets = [gevent.spawn(hold, f"r{number}") for number in range(8)]
gevent.joinall(greenlets, raise_error=True)
print(*{greenlet.value for greenlet in greenlets}, len(redlock._renewer))
redlock.close()
"""
    assert run(code, trio) == ["kept", "0"]
    assert happens(lambda: lock_keys(trio) == [])


@pytest.mark.parametrize("stopped", [2, 3], ids=lambda count: f"{count} stopped")
def test_killed_greenlet_leaves_no_key(nodes3: LocalNodes, serving: object, stopped: int) -> None:
    """Killed while stopped nodes have its command in their sockets."""
    serving(nodes3)
    code = """
redlock = Redlock(urls, ttl=20.0, node_timeout=3.0, observer=quiet)
redlock.acquire("warm-up").release()
print("connected")
sys.stdin.readline()
greenlet = gevent.spawn(redlock.acquire, "r")
gevent.sleep(0.3)
greenlet.kill()
print(type(greenlet.value).__name__)
redlock.close()
"""
    with start_python(PATCHED + code, *nodes3.urls) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "connected\n"
        for node in nodes3[3 - stopped :]:
            node.pause()
        output, errors = program.communicate("go\n", timeout=10.0)
    assert (output, errors) == ("GreenletExit\n", "")
    for node in nodes3:
        node.resume()
    assert happens(lambda: lock_keys(nodes3) == [], within=0.5)


def test_greenlets_killed_at_any_moment_leave_no_keys(trio: LocalNodes, serving: object) -> None:
    """Also when the one is killed that asks for all: the others get an answer, and the next acquires at once."""
    serving(trio)
    code = """
import random
random.seed(7)
redlock = Redlock(urls, ttl=20.0, observer=quiet)
redlock.acquire("warm-up").release()
ended = kept = 0

for number in range(60):
    greenlets = [gevent.spawn(redlock.acquire, f"r{number} {other}", wait=2.0) for other in range(4)]
    gevent.sleep(random.choice([0, 0, 0.0002, 0.0005, 0.001, 0.002]))
    for greenlet in greenlets[:2]:
        greenlet.kill()
    gevent.joinall(greenlets)
    for greenlet in greenlets:
        if hasattr(greenlet.value, "release"):
            kept += 1
            assert greenlet.value.release()
        elif greenlet.exception is None:
            ended += 1
        else:
            raise greenlet.exception
gevent.sleep(0.3)
print(ended > 0, kept >= 120, ended + kept)
redlock.close()
"""
    assert run(code, trio) == ["True", "True", "240"]
    assert happens(lambda: lock_keys(trio) == [], within=3.0)  # a node may be left out for 2 s meanwhile
