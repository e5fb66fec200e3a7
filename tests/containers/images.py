"""Images made of this machine's own programs, so that none has to be pulled.

An image is a tar of some programs, the libraries that `ldd` names, and a shell; Docker imports it. The workers' image
is then built from the project's own Dockerfile, on a Python base that is made in the same way.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redlock.local import available_servers
from tests.tools.peek import ROOT

__all__ = ["LABEL", "Images", "build"]

LABEL = "dramatiq-idem-tests"
"""On everything that the tests make, with their process id; images hand it to their containers."""
_UNNEEDED = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "site-packages", "test", "tkinter", "turtledemo"}
_OF_WHEELS = ("pthread", "dl", "rt", "util", "m", "gcc_s", "stdc++")
"""Libraries that a wheel of compiled code may expect everywhere."""
_VENV = "/opt/venv"


@dataclass(frozen=True)
class Images:
    """Tags of the images."""

    node: str
    python: str
    worker: str
    prometheus: str


def build(docker: Any, folder: Path) -> Images:
    """Make all images, in about half a minute.

    Args:
        docker: A client of the `docker` package.
        folder: For what is needed on the way.
    """
    tags = Images(*(f"{LABEL}/{name}:{os.getpid()}" for name in ("node", "python", "worker", "prometheus")))
    _import(docker, tags.node, _node(folder / "node.tar"), ["WORKDIR /data"])
    _import(docker, tags.prometheus, _prometheus(folder / "prometheus.tar"), [
        'CMD ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]',
    ])  # fmt: skip
    base, path = _python(folder / "python.tar", folder / "wheels")
    # The wheels are in the image: a build needs no network, and the Dockerfile knows nothing of it.
    variables = [f"ENV PATH={path}", "ENV PIP_NO_INDEX=1", "ENV PIP_FIND_LINKS=/wheels"]
    _import(docker, tags.python, base, variables)
    docker.images.build(
        path=str(ROOT),
        dockerfile="compose/Dockerfile",
        buildargs={"PYTHON_IMAGE": tags.python},
        tag=tags.worker,
        rm=True,
        forcerm=True,
        timeout=180,
    )
    docker.containers.run(
        tags.worker, ["python", "-c", "import dramatiq_idem, hiredis, prometheus_client"], remove=True
    )
    return tags


def _import(docker: Any, tag: str, tar: Path, changes: Sequence[str]) -> None:
    docker.api.import_image_from_file(str(tar), *tag.split(":"), changes=[*changes, f"LABEL {LABEL}={os.getpid()}"])
    tar.unlink()
    docker.images.get(tag)  # an import that failed only says so


def _node(tar: Path) -> Path:
    server = available_servers()[0]
    client = program("valkey-cli", "redis-cli")
    with Rootfs(tar) as root:
        root.programs(program("sh"), program("grep"), program("sleep"))
        root.program_as(server, f"/usr/bin/{Path(server).name}")
        root.program_as(client, f"/usr/bin/{Path(client).name}")
    return tar


def _prometheus(tar: Path) -> Path:
    with Rootfs(tar) as root:
        root.programs(program("sh"), program("prometheus"))
    return tar


def _python(tar: Path, wheels: Path) -> tuple[Path, str]:
    """Make a base as `python:3-slim` is one: `python` and `pip` on PATH. Returns the tar, and that PATH."""
    interpreter = os.path.realpath(sys.executable)
    library = Path(sysconfig.get_path("stdlib"))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    # As for a user: what the Dockerfile installs, and what builds it.
    wanted = [f"{ROOT}[hiredis,prometheus]", "hatchling"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "-w", wheels, *wanted], check=True, timeout=240)
    with Rootfs(tar) as root:
        root.programs(program("sh"), program("useradd"), program("mkdir"), interpreter)
        root.tree(library)
        root.libraries(str(path) for path in library.glob("lib-dynload/*.so"))
        root.beside_libc(_OF_WHEELS)
        root.tree(Path(pip.origin).parent, f"{_VENV}/lib/{version}/site-packages/pip")
        root.tree(wheels, "/wheels")
        root.text(f"{_VENV}/pyvenv.cfg", f"home = {Path(interpreter).parent}\ninclude-system-site-packages = false\n")
        root.text(f"{_VENV}/bin/pip", '#!/bin/sh\nexec python -m pip "$@"\n', mode=0o755)
        root.link(f"{_VENV}/bin/python", interpreter)
        root.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        root.text("/etc/group", "root:x:0:\n")
    return tar, f"{_VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(*names: str) -> str:
    """Return the first of these programs that is installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        raise FileNotFoundError(f"{' and '.join(names)} is not installed; images are made from it")
    return found


class Rootfs:
    """A tar that is growing into the files of an image."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w", dereference=True)  # noqa: SIM115 - __exit__ closes it
        self._added: set[str] = set()

    def __enter__(self) -> Rootfs:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        self._tar.addfile(folder)
        self._add("/etc/ld.so.cache", "/etc/ld.so.cache")  # libraries stay where the loader found them here
        return self

    def __exit__(self, *_exception: object) -> None:
        self._tar.close()

    def programs(self, *paths: str) -> None:
        """Add programs where they are found here, with what they need; a shell script is none."""
        for path in paths:
            self.program_as(path, "/bin/sh" if Path(path).name == "sh" else path)

    def program_as(self, path: str, name: str) -> None:
        """Add a program under another name, with what it needs."""
        self._add(path, name)
        self.libraries([path])

    def libraries(self, paths: Iterable[str]) -> None:
        """Add the libraries that programs or libraries need."""
        for path in paths:
            ldd = subprocess.run(["ldd", path], check=False, capture_output=True, text=True, timeout=10)
            for library in re.findall(r"(/\S+) \(0x", ldd.stdout):
                self._add(library, library)

    def beside_libc(self, names: Iterable[str]) -> None:
        """Add libraries that no program here need have asked for."""
        (libc,) = (Path(name) for name in self._added if Path(name).name == "libc.so.6")
        for path in (path for name in names for path in libc.parent.glob(f"lib{name}.so.[0-9]")):
            self._add(str(path), str(path))

    def tree(self, folder: Path, name: str | None = None) -> None:
        """Add a folder without tests, compiled files and what other packages left there."""
        self._tar.add(folder, name or str(folder), filter=_needed)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        """Add a file."""
        entry = tarfile.TarInfo(name.lstrip("/"))
        entry.size, entry.mode = len(text), mode
        self._tar.addfile(entry, io.BytesIO(text.encode()))

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        entry = tarfile.TarInfo(name.lstrip("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def _add(self, path: str, name: str) -> None:
        if name not in self._added:
            self._added.add(name)
            self._tar.add(os.path.realpath(path), name)


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    return None if name in _UNNEEDED or name.startswith("config-") or name.endswith(".a") else entry
