"""What is installed is the built wheel, so what it contains is tested."""

from __future__ import annotations

import subprocess
import sys
import zipfile


def test_wheel_carries_scripts_and_type_marker(tmp_path, pytestconfig):
    root = pytestconfig.rootpath
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(root)], check=True, timeout=60)
    (wheel,) = tmp_path.glob("dramatiq_idem-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = [root / "redlock", root / "dramatiq_idem"]
    wanted = {
        path.relative_to(root).as_posix()
        for package in packages
        for pattern in ("*.py", "*.lua", "py.typed")
        for path in package.rglob(pattern)
    }
    assert {"redlock/py.typed", "dramatiq_idem/py.typed"} <= wanted
    assert wanted <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"redlock", "dramatiq_idem"}
