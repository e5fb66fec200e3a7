"""Looking at nodes from outside, and waiting for what happens there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import redlock

ROOT = Path(redlock.__file__).resolve().parents[1]


def ask(url: str, *command: Any, **options: Any) -> Any:
    """Send one command, once, on a connection of its own and return the reply; errors are raised."""
    options = {"socket_timeout": 5.0, "decode_responses": True, "retry": Retry(NoBackoff(), 0)} | options
    with redis.Redis.from_url(url, **options) as client:
        return client.execute_command(*command)


def values(nodes: Iterable[Any], resource: str, namespace: str = "redlock") -> list[str | None]:
    """Return the token that each node has under a lock's key, without the mark of an extension."""
    found = [ask(node.url, "GET", f"{namespace}:lock:{resource}") for node in nodes]
    return [value and value.removesuffix("+") for value in found]


def lock_keys(nodes: Iterable[Any], namespace: str = "redlock") -> list[str]:
    """Return the keys of all locks on all nodes."""
    return [key for node in nodes for key in ask(node.url, "KEYS", f"{namespace}:lock:*")]


def happens(condition: Callable[[], Any], within: float = 2.0) -> bool:
    """Wait until something holds; return whether it did in time."""
    deadline = time.monotonic() + within
    while not (holds := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program that can import redlock; talk to it through its pipes."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def run_python(code: str, *arguments: str, timeout: float = 15.0) -> str:
    """Run a Python program to its end and return what it printed; its errors are raised."""
    with start_python(code, *arguments) as program:
        try:
            output, errors = program.communicate(timeout=timeout)
        finally:
            program.kill()
    assert program.returncode == 0, errors
    assert not errors, errors
    return output
