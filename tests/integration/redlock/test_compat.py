"""The way over from redlock-py: both libraries in one fleet, on the same nodes; and what shadows us where we run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlock import RedlockError, SettingsError
from redlock.compat import Lock, Redlock
from redlock.local import LocalNodes
from tests.tools.peek import ROOT, Stopwatch, ask, happens, run_python, start_python


@pytest.fixture
def make() -> Iterator[Callable[..., Redlock]]:
    """Return a factory of facades, which are closed at the end."""
    made: list[Redlock] = []

    def factory(*args: Any, **options: Any) -> Redlock:
        made.append(Redlock(*args, **options))
        return made[-1]

    yield factory
    for each in made:
        each.close()


def keys(nodes: LocalNodes, resource: str = "r") -> list[str | None]:
    """Return what each node has under a resource's own name."""
    return [ask(node.url, "GET", resource) for node in nodes]


# -- what lock and unlock return


def test_lock_is_had_and_given_back(trio: LocalNodes, make: Any) -> None:
    """Under redlock-py's key: the resource itself, with its fields and units."""
    locks = make(trio.urls)
    lock = locks.lock("r", 5_000)
    assert isinstance(lock, Lock)
    assert lock.resource == "r"
    assert 4_500 < lock.validity <= 4_948
    assert happens(lambda: keys(trio) == [lock.key] * 3)
    assert 4_000 < ask(trio[0].url, "PTTL", "r") <= 5_000
    assert locks.unlock(lock) is None
    assert happens(lambda: keys(trio) == [None] * 3)


def test_held_lock_is_false(trio: LocalNodes, make: Any) -> None:
    locks = make(trio.urls)
    lock = locks.lock("r", 5_000)
    assert locks.lock("r", 5_000) is False
    assert keys(trio) == [lock.key] * 3


def test_unlock_leaves_anothers_lock(trio: LocalNodes, make: Any) -> None:
    locks = make(trio.urls)
    lock = locks.lock("r", 5_000)
    locks.unlock(lock)
    other = make(trio.urls).lock("r", 5_000)
    assert locks.unlock(lock) is None
    assert happens(lambda: keys(trio) == [other.key] * 3)


def test_unlock_with_dead_nodes_returns(nodes3: LocalNodes, make: Any) -> None:
    """As redlock-py's: nothing is raised; where a node answers its key is gone."""
    locks = make(nodes3.urls)
    lock = locks.lock("r", 5_000)
    for node in nodes3[1:]:
        node.kill()
    assert locks.unlock(lock) is None
    assert happens(lambda: keys(nodes3[:1]) == [None])


def test_dead_minority_changes_nothing_and_dead_majority_is_false(nodes3: LocalNodes, make: Any) -> None:
    """Redlock-py raises although it holds the lock; and a lock that could not be had leaves no key."""
    locks = make(nodes3.urls, retry_delay=0.01)
    nodes3[0].kill()
    lock = locks.lock("r", 5_000)
    assert lock
    locks.unlock(lock)
    nodes3[1].kill()
    assert locks.lock("r", 5_000) is False
    assert happens(lambda: keys(nodes3[2:]) == [None])


def test_lock_taken_from_a_node_that_was_stopped_is_given_back(nodes3: LocalNodes, make: Any) -> None:
    """L14: the command that a stopped node executes late is undone behind it."""
    locks = make(nodes3.urls, retry_count=1)
    locks.unlock(locks.lock("warm-up", 5_000))
    for node in nodes3[1:]:
        node.pause()
    assert locks.lock("r", 20_000) is False
    for node in nodes3[1:]:
        node.resume()
    assert happens(lambda: keys(nodes3) == [None] * 3, within=0.5)


def test_single_attempt_takes_no_pause(trio: LocalNodes, make: Any) -> None:
    """L67: one attempt is one; no sleep after the last."""
    locks = make(trio.urls, retry_count=1, retry_delay=5.0)
    locks.lock("r", 5_000)
    watch = Stopwatch()
    assert locks.lock("r", 5_000) is False
    assert watch.seconds < 0.4


def test_attempts_are_counted(trio: LocalNodes, make: Any) -> None:
    """Three attempts have two pauses, of at most `retry_delay` each."""
    make(trio.urls).lock("r", 10_000)
    locks = make(trio.urls, retry_count=3, retry_delay=0.1)
    watch = Stopwatch()
    assert locks.lock("r", 5_000) is False
    assert watch.seconds < 0.2 + 0.3


def test_threads_exclude_each_other(trio: LocalNodes, make: Any) -> None:
    locks = make(trio.urls, retry_count=500, retry_delay=0.01)
    counter = 0

    def add() -> None:
        nonlocal counter
        for _ in range(20):
            lock = locks.lock("r", 5_000)
            counter += 1
            locks.unlock(lock)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == 80


# -- arguments


def test_connections_may_be_urls_clients_and_mappings(local_nodes: Any, make: Any) -> None:
    """In one list; a password with characters that mean something in a URL, and another database."""
    nodes = local_nodes(3, config={"requirepass": '"p@ss:/?# %"'})
    port = [node.port for node in nodes]
    with redis.Redis(port=port[1], password="p@ss:/?# %", db=2, decode_responses=True) as client:
        locks = make(
            [
                f"redis://:p%40ss%3A%2F%3F%23%20%25@127.0.0.1:{port[0]}",
                client,
                {"host": "127.0.0.1", "port": port[2], "db": 3, "password": "p@ss:/?# %"},
            ]
        )
        lock = locks.lock("r", 5_000)
        assert lock
        assert happens(lambda: client.get("r") == lock.key)
        assert happens(lambda: ask(f"redis://:p%40ss%3A%2F%3F%23%20%25@127.0.0.1:{port[2]}/3", "GET", "r") == lock.key)
        locks.unlock(lock)


BAD = {
    "no node": (SettingsError, {"connection_list": []}),
    "one node not in a list": (SettingsError, {"connection_list": "redis://127.0.0.1:1"}),
    "no attempt": (SettingsError, {"retry_count": 0}),
    "attempts as text": (SettingsError, {"retry_count": "3"}),
    "attempts as bool": (SettingsError, {"retry_count": True}),
    "unknown option": (SettingsError, {"connection_list": [{"host": "127.0.0.1", "ssl": True}]}),
    "a node of no known kind": (SettingsError, {"connection_list": [7]}),
    "a time-out of 0": (SettingsError, {"node_timeout": 0}),
    "a negative delay": (SettingsError, {"retry_delay": -1.0}),
    "a delay as text": (SettingsError, {"retry_delay": "0.2"}),
}


@pytest.mark.parametrize(("error", "options"), BAD.values(), ids=BAD)
def test_settings_that_can_never_work_are_refused(make: Any, error: type[Exception], options: dict[str, Any]) -> None:
    with pytest.raises(error):
        make(**{"connection_list": ["redis://127.0.0.1:1"]} | options)


TTLS = {
    "zero": 0,
    "negative": -1,
    "2 ms": 2,
    "nan": float("nan"),
    "inf": float("inf"),
    "bool": True,
    "text": "10",
    "none": None,
    "for ever": 2**62,
}


@pytest.mark.parametrize("ttl", TTLS.values(), ids=TTLS)
def test_ttl_that_can_never_work_is_refused(make: Any, ttl: Any) -> None:
    """L36: before any IO; nobody listens at this address."""
    with pytest.raises(SettingsError, match="ttl"):
        make(["redis://127.0.0.1:1"]).lock("r", ttl)


@pytest.mark.parametrize(
    "resource", ["", 7, None, "r" * 1_025, "\ud800"], ids=["empty", "int", "none", "long", "alone"]
)
def test_resource_that_can_never_work_is_refused(make: Any, resource: Any) -> None:
    with pytest.raises(SettingsError, match="resource"):
        make(["redis://127.0.0.1:1"]).lock(resource, 5_000)


def test_what_redlock_py_takes_as_its_defaults_is_taken(make: Any) -> None:
    """There both are None unless given, and code passes that on."""
    make(["redis://127.0.0.1:1"], retry_count=None, retry_delay=None)


def test_lock_unpacks_as_redlock_pys_does(trio: LocalNodes, make: Any) -> None:
    """There it is a named tuple."""
    validity, resource, key = make(trio.urls).lock("r", 5_000)
    assert (validity > 0, resource, len(key)) == (True, "r", 22)


# -- a fleet of both


@pytest.fixture(scope="session")
def redlock_py(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install redlock-py apart from everything else; without an index, skip on a laptop and fail in CI."""
    folder = tmp_path_factory.mktemp("redlock-py")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        "redlock-py==1.0.8",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        reason = f"SKIPPED: redlock-py cannot be installed: {done.stderr.strip()[-300:] if done else 'no answer'}"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return folder


OLD = "import sys\nsys.path.insert(0, {folder!r})\nfrom redlock import Redlock, __file__ as origin\n"
NEW = "import sys\nfrom redlock.compat import Redlock, __file__ as origin\n"
SERVE = """
print(origin, flush=True)
locks = Redlock(sys.argv[1:], retry_count=1, retry_delay=0.001)
lock = None
for line in sys.stdin:
    if line.strip() == "lock":
        lock = locks.lock("r", 20_000)
        print(bool(lock), flush=True)
    else:
        print(locks.unlock(lock), flush=True)
"""
COUNT = """
import time
path, rounds, urls = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
locks = Redlock(urls, retry_count=2_000, retry_delay=0.01)
for _ in range(rounds):
    lock = locks.lock("r", 10_000)
    assert lock
    with open(path) as file:
        seen = int(file.read())
    time.sleep(0.001)
    with open(path, "w") as file:
        file.write(str(seen + 1))
    locks.unlock(lock)
print("done", flush=True)
"""


class Member:
    """One process of the fleet."""

    def __init__(self, code: str, nodes: LocalNodes) -> None:
        self.process = start_python(code + SERVE, *nodes.urls)
        assert self.process.stdout is not None
        self.origin = self.process.stdout.readline().strip()

    def tell(self, word: str) -> str:
        """Let it lock or unlock; return what that returned."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def fleet(trio: LocalNodes, redlock_py: Path) -> Iterator[dict[str, Member]]:
    """One process with redlock-py and one with the facade."""
    members = {"old": Member(OLD.format(folder=str(redlock_py)), trio), "new": Member(NEW, trio)}
    yield members
    for member in members.values():
        member.close()


def test_fleet_is_what_it_says(fleet: dict[str, Member], redlock_py: Path) -> None:
    assert fleet["old"].origin.startswith(str(redlock_py))
    assert fleet["new"].origin == str(ROOT / "redlock" / "compat.py")


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_each_excludes_the_other(fleet: dict[str, Member], trio: LocalNodes, first: str, second: str) -> None:
    assert fleet[first].tell("lock") == "True"
    assert happens(lambda: None not in keys(trio))
    held = keys(trio)
    assert fleet[second].tell("lock") == "False"
    assert keys(trio) == held
    assert fleet[first].tell("unlock") == "None"
    assert happens(lambda: keys(trio) == [None] * 3)
    assert fleet[second].tell("lock") == "True"
    assert fleet[first].tell("lock") == "False"
    assert fleet[second].tell("unlock") == "None"


def test_fleet_counts_without_losing_a_step(trio: LocalNodes, redlock_py: Path, tmp_path: Path) -> None:
    """Two processes of each, an unprotected counter: every step is there."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    old = OLD.format(folder=str(redlock_py))
    programs = [start_python(code + COUNT, str(counter), "20", *trio.urls) for code in (old, old, NEW, NEW)]
    for program in programs:
        output, errors = program.communicate(timeout=18)
        assert output == "done\n", errors
    assert counter.read_text() == "80"


# -- what else is called redlock


SHADOWED = """
import sys
sys.path.insert(0, sys.argv[1])
import redlock
assert redlock.__file__.startswith(sys.argv[1]), redlock.__file__
try:
    import dramatiq_idem
except ImportError as error:
    print(error)
"""


def test_foreign_package_is_named_when_we_are_imported(tmp_path: Path) -> None:
    """L82: where it is, what to uninstall, what to install again."""
    package = tmp_path / "redlock"
    package.mkdir()
    package.joinpath("__init__.py").write_text("class Redlock:\n    pass\n")
    message = run_python(SHADOWED, str(tmp_path))
    assert str(package) in message
    assert "pip uninstall redlock" in message
    assert "reinstall dramatiq-idem" in message


def test_redlock_py_itself_is_named_when_we_are_imported(redlock_py: Path) -> None:
    """L82: the real one."""
    message = run_python(SHADOWED, str(redlock_py))
    assert str(redlock_py) in message
    assert "redlock-py" in message


def test_facade_is_closed_for_good(trio: LocalNodes, make: Any) -> None:
    locks = make(trio.urls)
    lock = locks.lock("r", 500)
    locks.close()
    with pytest.raises(RedlockError):
        locks.unlock(lock)
