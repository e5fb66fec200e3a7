"""Skew the wall clock of one process while it runs: jumps and rates, for servers that expire keys by wall clock.

    skew = WallSkew(compiled_shim(tmp_path), tmp_path)
    process = subprocess.Popen(["valkey-server", …], env=skew.env())
    skew.jump(-20.0)      # that process now lives 20 seconds ago
    skew.rate(4_000)      # and its clock runs 0.4 % fast

The monotonic clock of the process, and everybody else's clocks, stay as they are (see `wallskew.c`).
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
CONTROL = struct.Struct("=qqqq")  # sequence, offset_ns, ppm, base_ns, as in wallskew.c
SEQUENCE = struct.Struct("=q")
SECOND = 1_000_000_000  # nanoseconds
MILLION = 1_000_000


def compiled_shim(folder: Path) -> Path:
    """Compile the shim into `folder` and return the library.

    Without a compiler (or off Linux) the test is skipped; where CI is set it fails instead, since it has to run there.
    """
    compiler = shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        reason = "wallskew needs Linux and a C compiler (cc) to skew a server's clock"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{reason}, and CI has to run this", pytrace=False)
        pytest.skip(reason)
    library = folder / "wallskew.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True, timeout=60)
    return library


class WallSkew:
    """The wall clock of the processes started with `env()`.

    Args:
        library: What `compiled_shim` returned.
        folder: Where the control file is kept; it must outlive the processes.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self._offset_ns = self._ppm = self._base_ns = self._sequence = 0
        self._path = folder / f"wallskew-{os.getpid()}-{id(self):x}"
        self._path.write_bytes(CONTROL.pack(0, 0, 0, 0))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CONTROL.size)

    def env(self) -> dict[str, str]:
        """Return the environment for a process whose clock is to be skewed: this one's, and the shim."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "WALLSKEW_FILE": str(self._path)}

    @property
    def offset(self) -> float:
        """Return how far the skewed clock is ahead of the real one now, in seconds."""
        return self._offset_at(time.time_ns()) / SECOND

    def jump(self, seconds: float) -> None:
        """Step the clock forwards, or backwards if negative, once and at once."""
        self._offset_ns += round(seconds * SECOND)
        self._write()

    def rate(self, ppm: int) -> None:
        """Let the clock run fast from now on, or slow if negative, in millionths; 0 is the real rate, 4,000 is 0.4 %.

        What the clock gained so far stays.
        """
        now = time.time_ns()
        self._offset_ns, self._ppm, self._base_ns = self._offset_at(now), ppm, now
        self._write()

    def close(self) -> None:
        """Remove the control file; processes that still run keep their last skew."""
        self._map.close()
        self._path.unlink(missing_ok=True)

    def _offset_at(self, now_ns: int) -> int:
        return self._offset_ns + (now_ns - self._base_ns) * self._ppm // MILLION

    def _write(self) -> None:
        """Write the control file; the sequence is odd meanwhile, so that no reader believes half a change."""
        SEQUENCE.pack_into(self._map, 0, self._sequence + 1)
        self._sequence += 2
        CONTROL.pack_into(self._map, 0, self._sequence - 1, self._offset_ns, self._ppm, self._base_ns)
        SEQUENCE.pack_into(self._map, 0, self._sequence)
