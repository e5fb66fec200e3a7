"""The asyncio driver: carries plans out, and keeps leases alive. It holds no arithmetic and no rule."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redlock.aio_fanout import AsyncFanout
from redlock.clock import clock
from redlock.events import Observer, log_event
from redlock.node import Node, NodeSource, parse_nodes
from redlock.plan import Broadcast, Plan, Sleep, Step
from redlock.renewal import Holding, Renewals

__all__ = ["AsyncNodes", "AsyncRenewer"]

T = TypeVar("T")
_CLOSING_PAUSE = 0.005
_PAUSE = 0.05
"""Seconds before a round that failed as a whole is tried again."""

_logger = logging.getLogger("redlock")


class AsyncNodes:
    """The configured nodes as one event loop sees them; arguments and errors as for `Nodes`."""

    def __init__(
        self, sources: Sequence[NodeSource | Node], node_timeout: float = 0.5, observer: Observer = log_event
    ) -> None:
        self._fanout = AsyncFanout(parse_nodes(sources), node_timeout, clock, observer)
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._timeout = node_timeout
        self._running = 0

    def __len__(self) -> int:
        return len(self._fanout.names)

    @property
    def names(self) -> list[str]:
        """The nodes' names: addresses without credentials."""
        return self._fanout.names

    async def run(self, plan: Plan[T]) -> T:
        """Carry a plan out to its end; return its result, or raise what it raises.

        A cancellation is thrown into the plan; what the plan then asks for is done all the same, even if it is
        cancelled again.
        """
        self._running += 1
        try:
            return await self._run(plan)
        finally:
            self._running -= 1

    async def _run(self, plan: Plan[T]) -> T:
        resume: Callable[[Any], Step] = plan.send
        value: Any = None
        is_interrupted = False
        while True:
            try:
                step = resume(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                resume, value = plan.send, await (self._shielded(step) if is_interrupted else self._carry_out(step))
            except BaseException as error:  # noqa: BLE001 - the plan decides, and raises it again
                is_interrupted = True
                resume, value = plan.throw, error

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Broadcast):
            return (await self._fanout.ask((step,)))[0]
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        return await self._fanout.ask(step)

    async def _shielded(self, step: Step) -> Any:
        task = asyncio.ensure_future(self._carry_out(step))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Let plans that are under way take back what they wrote (for two time-outs at most), and close."""
        self._fanout.refuse()
        give_up = clock() + 2 * self._timeout
        while self._running and clock() < give_up:  # noqa: ASYNC110 - bounded, and rare
            await asyncio.sleep(_CLOSING_PAUSE)
        self._fanout.close()


class AsyncRenewer:
    """One task that keeps all leases of an event loop alive, in one pipeline per node and round."""

    def __init__(self, nodes: AsyncNodes) -> None:
        self._nodes = nodes
        self._renewals = Renewals()
        self._round: list[Holding] = []
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._renewals)

    def add(self, holding: Holding) -> None:
        """Keep a lease alive from now on."""
        self._renewals.add(holding)
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._changed, self._ended = asyncio.Event(), asyncio.Event()
            self._task = asyncio.ensure_future(self._run())
        self._changed.set()

    async def remove(self, holding: Holding) -> None:
        """Stop to extend a lease, and wait for an extension that is under way (at most for its time-out)."""
        self._renewals.remove(holding)
        if asyncio.current_task() is not self._task:
            while any(other is holding for other in self._round):
                await self._ended.wait()

    async def close(self) -> None:
        """Stop to extend anything; the leases run out."""
        self._renewals.clear()
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while len(self._renewals):
            due = self._renewals.due(clock())
            if not due:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._renewals.until_next(clock()))
                self._changed.clear()
                continue
            self._round = due
            self._ended.clear()
            try:
                await self._nodes.run(Renewals.extend(due))
            except Exception:
                _logger.exception("a renewal round failed; it is tried again")
                for holding in due:
                    holding.term.postponed()
                await asyncio.sleep(_PAUSE)
            finally:
                self._round = []
                self._ended.set()
            for tell in self._renewals.lost(due):
                asyncio.get_running_loop().call_soon(tell)
