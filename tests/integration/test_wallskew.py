"""The wall clock of one server process is skewed while its monotonic clock, and everybody else's, stays."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from tests.tools.wallskew import WallSkew, compiled_shim

CLOSE = 0.5  # seconds; what scheduling may add between two readings
STARTUP = 5.0  # seconds

READ_CLOCKS = """
import datetime, sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the shim once."""
    return compiled_shim(tmp_path_factory.mktemp("wallskew"))


@pytest.fixture
def skew(shim: Path, tmp_path: Path) -> Iterator[WallSkew]:
    """Give a clock of its own to whatever is started with `skew.env()`."""
    handle = WallSkew(shim, tmp_path)
    yield handle
    handle.close()


@pytest.fixture
def server(each_server: str, skew: WallSkew, tmp_path: Path) -> Iterator[redis.Redis]:
    """Run a server on the skewed clock; the test runs on Valkey and on Redis."""
    with running_server(each_server, tmp_path, skew.env()) as client:
        yield client


@contextmanager
def running_server(binary: str, folder: Path, env: dict[str, str]) -> Iterator[redis.Redis]:
    """Start a server without persistence on a free port and stop it at the end."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [binary, "--port", str(port), "--save", "", "--dir", str(folder), "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, socket_timeout=STARTUP, protocol=2) as client:
            wait_until_up(client, process)
            yield client
    finally:
        process.kill()
        process.wait(STARTUP)


def wait_until_up(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended at once"
        with suppress(redis.ConnectionError):
            client.ping()
            return
        time.sleep(0.01)
    pytest.fail("the server did not come up")


def ahead(client: redis.Redis) -> float:
    """Return by how many seconds the server's TIME is ahead of this process's clock."""
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6 - time.time()


def jump(client: redis.Redis, skew: WallSkew, seconds: float) -> None:
    """Jump, and wait until the server looks at its clock again: Valkey 9.1 answers up to a millisecond from a cache."""
    expected = ahead(client) + seconds
    skew.jump(seconds)
    wait_for(lambda: abs(ahead(client) - expected) < CLOSE, "the server to see the jump")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + STARTUP
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)


def test_untouched_clock_is_the_real_one(server: redis.Redis) -> None:
    """Preloading alone changes nothing."""
    assert ahead(server) == pytest.approx(0, abs=CLOSE)


@pytest.mark.parametrize("seconds", [30.0, -30.0], ids=["forwards", "backwards"])
def test_jump_moves_the_time_of_a_running_server(server: redis.Redis, skew: WallSkew, seconds: float) -> None:
    """TIME jumps while our own clock does not, and jumps add up."""
    jump(server, skew, seconds)
    jump(server, skew, seconds)
    assert ahead(server) == pytest.approx(2 * seconds, abs=CLOSE)
    assert skew.offset == 2 * seconds


def test_jump_forwards_expires_keys_early(server: redis.Redis, skew: WallSkew) -> None:
    """A key that should live an hour is gone after a jump of two: expiry follows the wall clock."""
    server.set("key", "value", ex=3600)
    jump(server, skew, 7200.0)
    assert server.get("key") is None


def test_jump_backwards_prolongs_keys(server: redis.Redis, skew: WallSkew) -> None:
    """A key gets the jump added to its life."""
    server.set("key", "value", ex=60)
    jump(server, skew, -3600.0)
    assert server.pttl("key") / 1000 == pytest.approx(3660, abs=CLOSE)


def test_servers_timers_run_on_through_a_jump(server: redis.Redis, skew: WallSkew) -> None:
    """The server still tidies up after a jump of an hour backwards: its timers go by the monotonic clock."""
    jump(server, skew, -3600.0)
    server.set("key", "value", px=20)
    wait_for(lambda: server.dbsize() == 0, "the server's own timer to remove the expired key")


def test_rate_drifts_and_keeps_what_it_gained(server: redis.Redis, skew: WallSkew) -> None:
    """A clock at double speed gains as much as passes, and keeps it when the rate is set back."""
    skew.rate(1_000_000)
    started = time.monotonic()
    time.sleep(0.3)
    skew.rate(0)
    passed = time.monotonic() - started
    gained = ahead(server)
    assert 0.3 - 0.05 <= gained <= passed + CLOSE
    assert skew.offset == pytest.approx(passed, abs=0.05)
    assert ahead(server) == pytest.approx(gained, abs=CLOSE)


def test_only_the_wall_clock_is_skewed(skew: WallSkew) -> None:
    """Within one process the wall clock jumps while monotonic and boot time go on."""
    command = [sys.executable, "-c", READ_CLOCKS]
    with subprocess.Popen(command, env=skew.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        before = read_clocks(process)
        skew.jump(100.0)
        after = read_clocks(process)
        process.stdin.close()
    wall, monotonic, boot = (later - earlier for earlier, later in zip(before, after, strict=True))
    assert wall == pytest.approx(100, abs=CLOSE)
    assert 0 <= monotonic < CLOSE
    assert 0 <= boot < CLOSE


def read_clocks(process: subprocess.Popen[str]) -> list[float]:
    """Ask a process for its wall, monotonic and boot time."""
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(field) for field in process.stdout.readline().split()]


def test_missing_compiler_is_a_loud_skip_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that cannot compile says so, and CI does not pass without having tested."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="compiler"):
        compiled_shim(tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="compiler"):
        compiled_shim(tmp_path)
