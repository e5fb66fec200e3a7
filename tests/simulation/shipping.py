"""Loads the simulation anew over shipping code in which some text is replaced, for mutants.

The changed modules live only in what is returned; the process's own copies are put back. A text that does not occur
exactly as often as expected is an error: a mutant that changes nothing proves nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

__all__ = ["Edit", "MutationError", "loaded"]

ROOT = Path(importlib.import_module("redlock").__file__ or "").resolve().parents[1]
_OURS = ("redlock", "dramatiq_idem")
_SIMULATION = (
    "world", "lock_world", "claim_world", "scheduler", "sim_net", "sim_nodes", "faults", "history", "lua_reader",
    "lua_runtime",
)  # fmt: skip


class MutationError(Exception):
    """A mutant's text does not apply to the shipping code any more."""


class Edit(NamedTuple):
    """One replacement of text.

    Args:
        path: The file, from the repository's root.
        old: What stands there.
        new: What takes its place.
        count: How often it has to stand there.
    """

    path: str
    old: str
    new: str
    count: int = 1


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are changed, and leaves all others to the usual finders."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            raise MutationError(f"no module {fullname}")
        loader = _Loader(fullname, found.origin, self._sources[fullname])
        return importlib.util.spec_from_file_location(
            fullname, found.origin, loader=loader, submodule_search_locations=found.submodule_search_locations
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        return compile(self._source, self.path, "exec", dont_inherit=True)


def _is_ours(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package in _OURS or (
        name.startswith("tests.simulation.") and rest.removeprefix("simulation.") in _SIMULATION
    )


def _applied(edits: Iterable[Edit]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the changed sources by module, and the changes to scripts."""
    texts: dict[str, str] = {}
    scripts = []
    for edit in edits:
        file = ROOT / edit.path
        if edit.path.endswith(".lua"):
            lines = file.read_text("utf-8").splitlines()
            text = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("--"))
            scripts.append((edit.old, edit.new))
        else:
            text = texts.get(edit.path) or file.read_text("utf-8")
            texts[edit.path] = text.replace(edit.old, edit.new)
        if (found := text.count(edit.old)) != edit.count:
            raise MutationError(f"{edit.path} has {found} times, not {edit.count} times: {edit.old!r}")
    sources = defaultdict(str)
    for path, text in texts.items():
        sources[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = text
    return dict(sources), scripts


@contextmanager
def loaded(world: str, edits: Iterable[Edit]) -> Iterator[ModuleType]:
    """Give a world ("lock_world", "claim_world") over changed shipping code.

    Raises:
        MutationError: An edit's text is not there.
    """
    sources, scripts = _applied(edits)
    kept = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    finder = _Finder(sources)
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        nodes = importlib.import_module("tests.simulation.sim_nodes")
        nodes.SUBSTITUTIONS[:] = scripts
        module = importlib.import_module(f"tests.simulation.{world}")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
    yield module
