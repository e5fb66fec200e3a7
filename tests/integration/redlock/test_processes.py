"""Processes: forked, stopped, ended; and what else is installed besides us."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redlock import Lease, LeaseLostError, LockHeldError, Redlock
from redlock.local import LocalNodes
from tests.tools.forking import in_child
from tests.tools.peek import Stopwatch, happens, lock_keys, run_python, start_python, values

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # forking is what is tested


@pytest.fixture
def redlock(trio: LocalNodes, serving: Callable[..., Redlock]) -> Redlock:
    """A lock on three healthy nodes."""
    return serving(trio)


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_child_may_not_use_its_parents_lease(redlock: Redlock, trio: LocalNodes, verb: str) -> None:
    """L63: a clear error in the child; the parent's keys and connections are untouched."""
    lease = redlock.acquire("r", ttl=10.0)
    assert happens(lambda: None not in values(trio, "r"))
    assert in_child(getattr(lease, verb)).startswith("LeaseLostError")
    assert values(trio, "r") == [lease.token] * 3
    assert lease.extend()
    assert lease.release()


def test_child_that_leaves_the_lock_keeps_its_parents_keys(redlock: Redlock, trio: LocalNodes) -> None:
    """L63: also the end of the with block, in the child, releases nothing of the parent's; renewal goes on."""
    with redlock.lock("r", ttl=0.6) as lease:
        pid = os.fork()
        if pid == 0:
            os._exit(_leaves(redlock, lease))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert happens(lambda: values(trio, "r") == [lease.token] * 3)
        time.sleep(0.8)
        lease.check()


def _leaves(redlock: Redlock, lease: Lease) -> int:
    """Do in the child what leaving the with block does."""
    try:
        lease.release()
    except LeaseLostError:
        return 0
    return 1


def test_child_takes_locks_of_its_own(redlock: Redlock, trio: LocalNodes) -> None:
    """L63: over connections of its own; parent and child exclude each other."""
    lease = redlock.acquire("parent's")

    def work() -> list[Any]:
        own = redlock.acquire("child's")
        try:
            redlock.acquire("parent's")
        except LockHeldError:
            return [own.validity > 0, own.extend(), own.release()]
        return ["two holders"]

    assert in_child(work) == "[True, True, True]"
    assert lease.extend()
    assert lease.release()
    assert happens(lambda: lock_keys(trio) == [])


def test_parent_and_child_never_read_each_others_replies(redlock: Redlock) -> None:
    """L63: both at work at once; over a shared connection each would take what answers the other."""

    def work() -> int:
        return sum(redlock.acquire(f"{os.getpid()} {number}").release() for number in range(200))

    redlock.acquire("warm-up").release()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert work() == 200
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "200"
    os.waitpid(pid, 0)


def test_child_renews_its_own_lease(redlock: Redlock) -> None:
    """L63: the renewing thread does not survive a fork; the child gets a new one."""
    with redlock.lock("parent's", ttl=0.5):

        def work() -> bool:
            with redlock.lock("child's", ttl=0.3) as lease:
                time.sleep(0.6)
                return not lease.lost

        assert in_child(work) == "True"


HOLDER = """
import sys, time
from redlock import LeaseLostError, Redlock
redlock = Redlock(sys.argv[1:], ttl=0.4)
lease = redlock.acquire("r")
print("held")
sys.stdin.readline()
try:
    lease.check()
    print("still trusted")
except LeaseLostError:
    print("lost", lease.extend(), lease.release(), lease.validity)
"""


def test_holder_that_was_stopped_past_its_ttl_knows_it_at_once(redlock: Redlock, trio: LocalNodes) -> None:
    """L34: SIGSTOP for twice the ttl; the first look afterwards says lost, and the next holder's keys are untouched."""
    with start_python(HOLDER, *trio.urls) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        lease = redlock.acquire("r", ttl=10.0)
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "lost False False 0.0\n"
        holder.wait(5.0)
    assert happens(lambda: values(trio, "r") == [lease.token] * 3)
    assert lease.release()


def test_interpreter_ends_at_once_with_a_hung_node(nodes3: LocalNodes, serving: Any) -> None:
    """L25: nothing is released or waited for at exit, whatever threads and connections there are."""
    serving(nodes3)
    code = """
import sys
from redlock import Redlock
redlock = Redlock(sys.argv[1:], ttl=5.0, node_timeout=5.0)
with redlock.lock("warm-up"):
    pass
manager = redlock.lock("r")
lease = manager.__enter__()
print("held")
sys.stdin.readline()
"""
    with start_python(code, *nodes3.urls) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        nodes3[2].pause()
        watch = Stopwatch()
        program.stdin.close()
        assert program.wait(10.0) == 0
        assert watch.seconds < 1.5
    nodes3[2].resume()


def test_nothing_is_released_by_the_garbage_collector() -> None:
    """L25: a lease that is dropped sends nothing; IO in a finaliser hangs interpreters."""
    assert not hasattr(Lease, "__del__")
    assert not hasattr(Redlock, "__del__")


def test_import_that_finds_a_foreign_redlock_fails_loudly(tmp_path: Path) -> None:
    """L82: redlock-py's package has our name; if it shadows us, the middleware says which one it found."""
    (tmp_path / "redlock").mkdir()
    (tmp_path / "redlock" / "__init__.py").write_text(
        "class Redlock:\n    pass\nclass MultipleRedlockException(Exception):\n    pass\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
try:
    import dramatiq_idem
except ImportError as error:
    print("loud:", error)
else:
    print("works")
"""
    said = run_python(code)
    assert said.startswith("loud: ")
    assert str(tmp_path / "redlock") in said
    assert "redlock-py" in said


def test_import_has_no_side_effects() -> None:
    """L82: no thread, no connection, no logging configuration, no environment read for it."""
    code = """
import logging, threading
import redlock
print(threading.active_count(), logging.getLogger().handlers, logging.getLogger("redlock").handlers)
"""
    assert run_python(code) == "1 [] []\n"


def test_console_command_clashes_with_nobody() -> None:
    """L82: redlock-py installs a command named `redlock`."""
    scripts = importlib.metadata.distribution("dramatiq-idem").entry_points.select(group="console_scripts")
    assert {script.name for script in scripts} == {"dramatiq-idem"}
