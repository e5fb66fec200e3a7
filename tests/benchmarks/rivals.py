"""Acquire and release against the lock libraries on PyPI, each in a virtual environment of its own.

All of them, ours too, run the same loop in a subprocess, with hiredis, on the same nodes. The environments are made on
first use, below the system's folder for temporary files, and kept there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from redlock.local import LocalNodes
from tests.benchmarks.harness import Options, Row, Samples, at_least, interleaved
from tests.benchmarks.servers import started
from tests.benchmarks.slow_network import slow_network

RIVALS = {"redlock-py": "1.0.8", "redlock-ng": "2.0.4", "pottery": "3.0.1"}
OURS = "dramatiq-idem"
DELAY_MS = 5.0
TARGETS = {(3, 0.0): 1.2, (5, 0.0): 1.8, (3, DELAY_MS): 2.5, (5, DELAY_MS): 4.0}
NOTE = "one thread, acquire and release of a free lock; mean of a round; all with hiredis: "
_DRIVER = Path(__file__).with_name("rival_driver.py")


class Driver:
    """A subprocess that locks and unlocks on demand."""

    def __init__(self, python: str, library: str, urls: list[str]) -> None:
        command = [python, "-I", str(_DRIVER), library, *urls]  # isolated: ours must not be in another's way
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.library = library
        self.about = self._answer().removeprefix("ready ").strip()

    def seconds(self, count: int) -> float:
        """Return how long one pair takes, over so many."""
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self.library} ended with {self._process.wait(10.0)}")
        return line

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate(timeout=10.0)


def run(options: Options) -> Iterator[Row]:
    """Measure with three and five nodes, without and with a slow network."""
    pythons: dict[str, str] = {OURS: sys.executable}
    for library, version in RIVALS.items():
        try:
            pythons[library] = _environment(library, version)
        except (OSError, subprocess.SubprocessError) as error:  # noqa: PERF203 - each library for itself
            text = getattr(error, "stderr", None) or str(error)
            yield Row(library, None, note=f"COULD NOT BE INSTALLED, so it is missing below: {text.strip()[-300:]}")
    if len(pythons) == 1:
        return
    for size in (3, 5):
        with started(size) as nodes:
            yield from _compare(pythons, nodes, 0.0, options)
            yield from _compare(pythons, nodes, DELAY_MS, options)


def _compare(pythons: dict[str, str], nodes: LocalNodes, delay_ms: float, options: Options) -> Iterator[Row]:
    what = f"{len(nodes)} nodes" + (f", replies {delay_ms:g} ms later" if delay_ms else "")
    count = options.count(40, 10) if delay_ms else options.count(500, 50)
    with ExitStack() as stack:
        urls = stack.enter_context(slow_network([node.port for node in nodes], delay_ms)) if delay_ms else nodes.urls
        sides: dict[str, Callable[[], float]] = {}
        abouts = []
        for library, python in pythons.items():
            try:
                driver = Driver(python, library, urls)
            except RuntimeError as error:
                if library == OURS:
                    raise
                yield Row(f"{library}, {what}", None, note=f"DID NOT RUN, so it is missing: {error}")
                continue
            stack.callback(driver.close)
            abouts.append(driver.about)
            sides[library] = lambda driver=driver: driver.seconds(count)
        found = interleaved(sides, options.rounds)
    yield from _rows(what, found, TARGETS[len(nodes), delay_ms], NOTE + ", ".join(abouts))


def _rows(what: str, found: dict[str, Samples], target: float, note: str) -> Iterator[Row]:
    ours = found.pop(OURS)
    for library in sorted(found, key=lambda name: found[name].median):
        is_best = library == min(found, key=lambda name: found[name].median)
        yield Row(
            f"{what}: {'the best, ' if is_best else ''}{library}",
            found[library].median / ours.median,
            target=at_least(target) if is_best else None,
            ours=ours.shown("ms", 1e3),
            other=f"{library} {found[library].shown('ms', 1e3)}",
            note=note,
        )


def _environment(library: str, version: str) -> str:
    """Return the interpreter of an environment with one library, made if it is not there.

    Raises:
        OSError: Its folder cannot be used.
        CalledProcessError: The library cannot be installed.
    """
    home = Path(tempfile.gettempdir()) / f"dramatiq-idem-rivals-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.lstat().st_uid != os.getuid() or home.is_symlink():
        raise PermissionError(f"{home} belongs to somebody else")
    folder = home / f"{library}-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python, finished = folder / "bin" / "python", folder / "finished"
    if not finished.exists():
        print(f"installing {library} {version} below {home}", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += [f"{library}=={version}", "hiredis"]
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, timeout=300.0)
        finished.touch()
    return str(python)
