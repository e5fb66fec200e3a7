"""Work in a forked child, as servers that fork their workers do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["in_child"]


def in_child(work: Callable[[], Any]) -> str:
    """Run a function in a forked child; return its result's repr, or its error's name and text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = repr(work())
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            outcome = f"{type(error).__name__}: {error}"
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        outcome = pipe.read()
    os.waitpid(pid, 0)
    return outcome
