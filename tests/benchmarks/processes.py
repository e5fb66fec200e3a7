"""CPU time of processes, from /proc (Linux only, elsewhere it is nan), and a real Dramatiq worker."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_ROOT = Path(__file__).resolve().parents[2]


def cpu_seconds(*pids: int) -> float:
    """Return the user and system time that processes took so far, all their threads included; in steps of a tick."""
    if not _PROC.is_dir():
        return math.nan
    total = 0
    for pid in pids:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # utime and stime; the list starts with the third field
    return total / _TICKS


def wait_for(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.005) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: It did not happen in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(pause)


@contextmanager
def dramatiq_worker(
    module: str, environment: Mapping[str, str], booted: Callable[[], set[int]], processes: int = 1
) -> Iterator[list[int]]:
    """Run a real Dramatiq worker with 8 threads in each process; give the ids of its processes once they consume.

    Args:
        module: Of the broker and its actors.
        environment: What the module reads, besides ours.
        booted: Returns the processes that have booted.
        processes: How many there are to be.
    """
    command = [sys.executable, "-m", "dramatiq", module, "--processes", str(processes), "--threads", "8"]
    command += ["--skip-logging", "--path", str(_ROOT)]
    worker = subprocess.Popen(command, cwd=_ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: worker.poll() is not None or len(booted()) == processes, 30.0, "the start of the worker", 0.05)
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with {worker.returncode}")
        yield sorted(booted())
    finally:
        pids = booted() if worker.poll() is None else set()
        _send(signal.SIGCONT, pids)  # one that was left stopped could not end
        worker.terminate()
        try:
            worker.wait(30.0)
        except subprocess.TimeoutExpired:
            _send(signal.SIGKILL, {worker.pid, *pids})
            worker.wait(10.0)


def _send(number: signal.Signals, pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
