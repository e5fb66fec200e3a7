"""The Docker daemon, images made of this machine's programs, and the certainty that nothing stays behind."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.images import LABEL, Images, build
from tests.containers.rig import Rig
from tests.tools.compose import lacking


@pytest.fixture(scope="session")
def docker() -> Iterator[Any]:
    """A client of the Docker daemon; at the end, all that this process made is removed."""
    try:
        package: Any = importlib.import_module("docker")
    except ImportError:
        lacking("the package docker", "pip install docker")
    if error := _no_daemon():
        lacking("Docker with a running daemon", f"start dockerd ({error})")
    client = package.from_env(timeout=60)
    terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)  # else nothing would be cleaned up
    _remove(client, lambda owner: not Path(f"/proc/{owner}").exists())  # who made it was killed
    try:
        yield client
    finally:
        _remove(client, lambda owner: owner == str(os.getpid()))
        signal.signal(signal.SIGTERM, terminated)
        client.close()


def _no_daemon() -> str:
    """Return why there is no daemon; asked by command, since the package leaves a socket open if there is none."""
    try:
        probe = subprocess.run(["docker", "info"], check=False, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        return str(error)
    return probe.stderr.strip() if probe.returncode else ""


def _remove(client: Any, is_meant: Callable[[str], bool]) -> None:
    """Remove what the tests made in a process whose id is meant."""

    def ours(things: list[Any], labels: Callable[[Any], dict[str, str] | None]) -> list[Any]:
        return [thing for thing in things if (owner := _owner(labels(thing) or {})) and is_meant(owner)]

    for container in ours(client.containers.list(all=True, ignore_removed=True), lambda thing: thing.labels):
        container.remove(force=True, v=True)
    for kind in (client.networks, client.volumes):
        for thing in ours(kind.list(), lambda thing: thing.attrs["Labels"]):
            thing.remove()
    images = ours(client.images.list(), lambda thing: thing.labels)
    for image in sorted(images, key=lambda image: str(image.attrs["Created"]), reverse=True):
        client.images.remove(image.id, force=True)  # the younger first, which may be built on the older


def _owner(labels: dict[str, str]) -> str:
    """Return the id of the process that made something, by our label or by the name of a compose project."""
    project = labels.get("com.docker.compose.project", "")
    return labels.get(LABEL) or (project.removeprefix(f"{LABEL}-") if project.startswith(LABEL) else "")


@pytest.fixture(scope="session")
def images(docker: Any, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The images, built once."""
    return build(docker, tmp_path_factory.mktemp("images"))


@pytest.fixture
def rig(docker: Any, images: Images) -> Iterator[Rig]:
    """Three nodes, a broker and two workers at work; for one test, which may harm them."""
    with Rig(docker, images) as rig:
        yield rig
        for name in rig.containers:  # shown if the test failed
            print(f"-- {name}\n{rig.log(name)[-2_000:]}")
