"""Why a fencing token: a holder that was stopped writes after its lease has ended, and only the store can refuse."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redlock import LeaseLostError, Redlock
from redlock.local import LocalNodes
from tests.tools.peek import start_python

HOLDER = """
import sys
from redlock import LeaseLostError, Redlock
from tests.integration.redlock.test_paused_holder import STORES

kind, path, *urls = sys.argv[1:]
store = STORES[kind](path)
redlock = Redlock(urls, ttl=1.5, observer=lambda event: None)
lease = redlock.acquire("report")
lease.check()
print("checked", lease.fencing_token)
sys.stdin.readline()
print(store.write("stale", lease.fencing_token))
try:
    lease.check()
except LeaseLostError:
    print("lost")
"""


class PlainStore:
    """A file that takes whatever comes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, text: str, token: int) -> bool:
        """Write; return whether it was accepted."""
        self._path.write_text(f"{token} {text}")
        return True

    def read(self) -> str:
        """Return what was written last."""
        return self._path.read_text().split(" ", 1)[1]


class FencedStore(PlainStore):
    """The same, but nothing is taken from a holder with a smaller token than one that has written."""

    def write(self, text: str, token: int) -> bool:
        """Write unless somebody with a larger token was here; return whether it was accepted."""
        if self._path.exists() and int(self._path.read_text().split(" ", 1)[0]) > token:
            return False
        return super().write(text, token)


STORES: dict[str, Callable[[str], PlainStore]] = {"plain": PlainStore, "fenced": FencedStore}


@pytest.mark.parametrize(
    ("kind", "accepted", "content"), [("plain", "True", "stale"), ("fenced", "False", "fresh")], ids=["plain", "fenced"]
)
def test_store_meets_a_holder_that_was_stopped(
    trio: LocalNodes, serving: Any, tmp_path: Path, kind: str, accepted: str, content: str
) -> None:
    """L75: SIGSTOP between check and write, past the end of the lease; no lock can prevent that write."""
    redlock: Redlock = serving(trio)
    path = str(tmp_path / "store")
    with start_python(HOLDER, kind, path, *trio.urls) as holder:
        first = _line(holder).split()
        assert first[0] == "checked"
        holder.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        with redlock.lock("report", wait=3.0) as lease:
            assert lease.fencing_token > int(first[1])
            assert STORES[kind](path).write("fresh", lease.fencing_token)
        assert holder.stdin is not None
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert _line(holder) == accepted
        assert _line(holder) == "lost"
        holder.communicate(timeout=5.0)
    assert STORES[kind](path).read() == content


def test_check_right_before_the_write_narrows_the_gap_but_no_more(redlock: Any) -> None:
    """A lease that has ended says so at once, without asking anybody."""
    lease = redlock.acquire("report", ttl=0.1)
    time.sleep(0.15)
    with pytest.raises(LeaseLostError):
        lease.check()


@pytest.fixture
def redlock(trio: LocalNodes, serving: Any) -> Redlock:
    """A lock on three healthy nodes."""
    lock: Redlock = serving(trio)
    return lock


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()
