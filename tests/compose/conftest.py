"""Where the files are, and the tools that check them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dramatiq_idem
from dramatiq_idem.metrics import METRICS
from tests.tools.compose import lacking

_FOUND = re.compile(r"\b(?:dramatiq|redlock)_[a-z_]+\b")
_OF_DRAMATIQ = {"dramatiq_messages_total", "dramatiq_message_errors_total", "dramatiq_messages_inprogress"}


@pytest.fixture
def tool() -> Callable[[str], str]:
    """Find a command that Debian has as a package."""

    def find(name: str, package: str | None = None) -> str:
        path = shutil.which(name)
        if path is None:
            lacking(name, f"apt-get install {package or name}")
        return str(path)

    return find


@pytest.fixture(scope="session")
def compose() -> Path:
    """The folder of the compose files."""
    return Path(dramatiq_idem.__file__).parent.parent / "compose"


@pytest.fixture(scope="session")
def dashboard(compose: Path) -> dict:
    """The dashboard."""
    return json.loads((compose / "grafana/dashboards/dashboard.json").read_text())


@pytest.fixture(scope="session")
def unknown_metrics() -> Callable[[str], set[str]]:
    """Return the names in a query that neither this package nor Dramatiq exports."""
    known = set(_OF_DRAMATIQ)
    for name, metric in METRICS.items():
        parts = ("bucket", "sum", "count") if metric.kind == "Histogram" else ()
        known |= {f"{name}_{part}" for part in parts} or {name}
    return lambda query: set(_FOUND.findall(query)) - known
