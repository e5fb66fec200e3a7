"""A throwaway RabbitMQ node on free ports, with everything that it writes in one directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

__all__ = ["RabbitmqServer", "find_rabbitmq"]

_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/rabbitmq/sbin")
_START_TIMEOUT = 60.0


def find_rabbitmq() -> Path:
    """Return the server's start script; without it, skip on a laptop and fail where CI is set: there it has to be."""
    # Debian's /usr/sbin/rabbitmq-server changes the user; the one behind it runs as whoever calls it.
    found = shutil.which("rabbitmq-server", path=os.pathsep.join(_PLACES)) or shutil.which("rabbitmq-server")
    if found:
        return Path(found)
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail("rabbitmq-server is not installed, and CI has to test it", pytrace=False)
    pytest.skip("rabbitmq-server is not installed: apt-get install rabbitmq-server")


class RabbitmqServer:
    """One node with a name, ports and a directory of its own.

    Args:
        binary: The start script.
        directory: Where it writes; must exist.
    """

    def __init__(self, binary: Path, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self.port, self._dist_port, self._epmd_port = _free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for a broker."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def __enter__(self) -> RabbitmqServer:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop()

    def vhost(self, name: str) -> str:
        """Make an empty virtual host, so that tests share nothing; return its address."""
        command = [str(self._binary.with_name("rabbitmqctl")), "-q"]
        for words in (["add_vhost", name], ["set_permissions", "-p", name, "guest", ".*", ".*", ".*"]):
            subprocess.run([*command, *words], env=self._env(), check=True, capture_output=True, timeout=60.0)
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{name}"

    def _start(self) -> None:
        with (self._directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(self._binary)],
                env=self._env(),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_end = (self._directory / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._binary} does not answer on port {self.port}; its log ends:\n{log_end}")
            time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError, ValueError):  # the server first, so that its script can see it end
            os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)
        self._stop_epmd()

    def _stop_epmd(self) -> None:
        """End the port mapper, which left our process group; it listens on a port that nobody else knows."""
        command = ["epmd", "-port", str(self._epmd_port), "-kill"]
        deadline = time.monotonic() + 5.0
        while shutil.which("epmd") and time.monotonic() < deadline:  # it refuses while it believes the node alive
            if b"Killed" in subprocess.run(command, check=False, capture_output=True, timeout=10.0).stdout:
                return
            time.sleep(0.1)

    def _env(self) -> dict[str, str]:
        home = str(self._directory)
        plugins = self._directory / "enabled_plugins"
        plugins.write_text("[].\n")
        return {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"idem{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONF_ENV_FILE": f"{home}/none",
            "RABBITMQ_CONFIG_FILE": f"{home}/none",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
        }

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2.0) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"  # a method frame: Connection.Start
        return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
