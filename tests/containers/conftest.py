"""The Docker daemon, images made of this machine's programs, and the certainty that nothing stays behind."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.conftest import lacking
from tests.containers.images import LABEL, Images, build
from tests.containers.rig import Rig


@pytest.fixture(scope="session")
def docker() -> Iterator[Any]:
    """A client of the Docker daemon; at the end, all that this process made is removed."""
    try:
        package: Any = importlib.import_module("docker")
    except ImportError:
        lacking("the package docker", "pip install docker")
    try:
        client = package.from_env(timeout=60)
        client.ping()
    except package.errors.DockerException as error:
        lacking("a Docker daemon that answers", f"start dockerd ({error})")
    terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)  # else nothing would be cleaned up
    _remove(client, lambda owner: not Path(f"/proc/{owner}").exists())  # who made it was killed
    try:
        yield client
    finally:
        _remove(client, lambda owner: owner == str(os.getpid()))
        signal.signal(signal.SIGTERM, terminated)
        client.close()


def _remove(client: Any, is_meant: Callable[[str], bool]) -> None:
    """Remove what carries our label, and a process id that is meant."""
    filters = {"label": LABEL}
    for container in client.containers.list(all=True, filters=filters, ignore_removed=True):
        if is_meant(container.labels[LABEL]):
            container.remove(force=True, v=True)
    for kind in (client.networks, client.volumes):
        for thing in kind.list(filters=filters):
            if is_meant(thing.attrs["Labels"][LABEL]):
                thing.remove()
    for image in sorted(client.images.list(filters=filters), key=lambda image: image.attrs["Created"], reverse=True):
        if is_meant(image.labels[LABEL]):  # what was built on another one is younger, and has to go first
            client.images.remove(image.id, force=True)


@pytest.fixture(scope="session")
def images(docker: Any, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The images, built once."""
    return build(docker, tmp_path_factory.mktemp("images"))


@pytest.fixture
def rig(docker: Any, images: Images) -> Iterator[Rig]:
    """Three nodes, a broker and two workers at work; for one test, which may harm them."""
    with Rig(docker, images) as rig:
        yield rig
