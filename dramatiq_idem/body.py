"""Around an actor's function: the one place where a body can be replaced by a result, or be interrupted safely.

An interrupt that is armed in hooks kills worker threads: between the body's end and the hook it hits Dramatiq itself.
Here it is armed, and taken back, next to the call. It still can land between the function's return and the disarming;
then a body that had finished counts as failed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dramatiq import Actor
from dramatiq.middleware import Interrupt, raise_thread_exception

__all__ = ["Interrupter", "LeaseLostInterrupt", "expect_body", "wrap"]

Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_MARK = "__dramatiq_idem__"
_expected: ContextVar[tuple[str, Runner] | None] = ContextVar("dramatiq_idem_body", default=None)


class LeaseLostInterrupt(Interrupt):
    """Raised inside of a body whose lease is lost, where the actor chose to be interrupted."""


def expect_body(actor_name: str, runner: Runner | None) -> None:
    """Let the next call of this actor in this context go through a runner; calls that code makes itself do not."""
    _expected.set((actor_name, runner) if runner else None)


def wrap(actor: Actor[..., Any]) -> None:
    """Put the runner of a delivery around an actor's function; once, however often the actor is declared."""
    function = actor.fn
    if getattr(function, _MARK, None) is actor:
        return

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        expected = _expected.get()
        if expected is None or expected[0] != actor.actor_name:
            return function(*args, **kwargs)
        _expected.set(None)
        return expected[1](function, args, kwargs)

    setattr(body, _MARK, actor)
    actor.fn = body


class Interrupter:
    """Interrupts the body of one delivery, and nothing else."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._target: int | Any | None = None
        self._is_fired = False

    def __enter__(self) -> None:
        with self._mutex:
            if self._is_fired:
                raise LeaseLostInterrupt
            self._target = _current_greenlet() or threading.get_ident()

    def __exit__(self, *_: object) -> None:
        """Disarm: an interrupt that was fired and has not landed yet lands here, and not later."""
        try:
            with self._mutex:
                target, self._target = self._target, None
                if not self._is_fired or not isinstance(target, int):
                    return
                # Fire once more: that replaces one under way, and is needed to end the search for it. Clearing it, with
                # NULL, leaves the interpreter looking for it (3.11: under a tracer it then does nothing else).
                raise_thread_exception(target, LeaseLostInterrupt)  # type: ignore[no-untyped-call]
            for _turn in range(1_000):  # it lands at the end of the first turn
                pass
        except LeaseLostInterrupt:
            pass

    def fire(self) -> None:
        """Raise LeaseLostInterrupt in the body, if it still runs or as soon as it begins."""
        with self._mutex:
            self._is_fired = True
            if isinstance(self._target, int):
                raise_thread_exception(self._target, LeaseLostInterrupt)  # type: ignore[no-untyped-call]
            elif self._target is not None:
                self._target.kill(LeaseLostInterrupt, block=False)


def _current_greenlet() -> Any:
    """Return the current greenlet under gevent's monkey patching, where threads cannot be interrupted; else None."""
    try:
        from gevent import getcurrent
        from gevent.monkey import is_module_patched
    except ImportError:
        return None
    return getcurrent() if is_module_patched("threading") else None
