"""Real dramatiq workers to kill: a master with one worker process each, so that one can go and the others stay.

A master stops all its worker processes when it loses one; so each worker here has a master of its own, and both go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from dramatiq_idem.demo.jobs import Site
from redlock import RedlockError

__all__ = ["Workers"]

_COMMAND = (sys.executable, "-m", "dramatiq", "dramatiq_idem.demo.jobs:worker", "--processes", "1", "--threads", "8")
_WATCHDOG = (
    "while read -r line; do groups=$line; done; "
    '[ -z "$groups" ] || { kill -s KILL -- $groups; sleep 0.2; rm -rf -- "$0"; }'
)
"""Kills whom it read last, once the pipe closes: workers do not outlive this process, even if it gets SIGKILL."""


class Workers:
    """Workers by number, none unless started; each is a process group of its own.

    Args:
        site: What they are told.
    """

    def __init__(self, site: Site) -> None:
        self._environment = os.environ | site.to_environment()
        self._log = Path(site.journals) / "workers.log"
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, site.journals],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self, index: int) -> None:
        """Start a worker; do not wait until it has booted."""
        with self._log.open("ab") as log:
            self._running[index] = subprocess.Popen(
                _COMMAND,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._tell_watchdog()

    def group(self, index: int) -> int:
        """Return a running worker's process group."""
        return self._running[index].pid

    def pause(self, index: int) -> None:
        """Freeze a worker (SIGSTOP), to look at what it is doing."""
        os.killpg(self.group(index), signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """Let a frozen worker go on (SIGCONT)."""
        os.killpg(self.group(index), signal.SIGCONT)

    def kill(self, index: int) -> None:
        """End a worker's whole process group with SIGKILL."""
        _kill_group(self._running.pop(index))
        self._tell_watchdog()

    def check(self) -> None:
        """Raise RedlockError, with the end of the log, if a worker ended that nobody killed."""
        for process in self._running.values():
            if process.poll() is not None:
                lines = self._log.read_text(errors="replace").splitlines()[-15:]
                raise RedlockError(
                    "\n".join([f"a worker ended with status {process.returncode}; its log ends:", *lines])
                )

    def close(self) -> None:
        """Kill the workers; a run that is over, or given up, waits for none of them."""
        for process in self._running.values():
            _kill_group(process)
        self._running.clear()
        self._tell_watchdog()
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._watchdog.communicate(timeout=5.0)
        self._watchdog.kill()
        self._watchdog.wait(5.0)

    def _tell_watchdog(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._watchdog.stdin is not None:
                groups = (f"-{process.pid}" for process in self._running.values())
                self._watchdog.stdin.write(f"{' '.join(groups)}\n".encode())
                self._watchdog.stdin.flush()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5.0)
