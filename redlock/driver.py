"""The thread driver: carries plans out on real nodes. It holds no arithmetic and no rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redlock.clock import clock
from redlock.events import Observer, log_event
from redlock.fanout import Fanout
from redlock.forking import starts_afresh_in_children
from redlock.node import Node, NodeSource, parse_nodes
from redlock.plan import Broadcast, Plan, Sleep, Step
from redlock.protocol import check_nodes

__all__ = ["Nodes"]

T = TypeVar("T")
_CLOSING_PAUSE = 0.005


class Nodes:
    """The configured nodes as one process sees them; any thread may run plans on them.

    Args:
        sources: URLs or redis-py clients (of which only the configuration is used), one per independent server.
        node_timeout: Seconds for each step of connecting; default 0.5.
        observer: Is told when a node fails and when it is back.
    Raises:
        SettingsError: There is no node, one cannot be read, or one is listed twice.
    """

    def __init__(
        self, sources: Sequence[NodeSource | Node], node_timeout: float = 0.5, observer: Observer = log_event
    ) -> None:
        self._timeout = node_timeout
        self._fanout = Fanout(parse_nodes(sources), node_timeout, clock, observer)
        self._running: set[object] = set()
        starts_afresh_in_children(self)

    def after_fork(self) -> None:
        """Forget what the parent's threads are doing."""
        self._running = set()

    def __len__(self) -> int:
        return len(self._fanout.names)

    @property
    def names(self) -> list[str]:
        """The nodes' names: addresses without credentials."""
        return self._fanout.names

    def run(self, plan: Plan[T]) -> T:
        """Carry a plan out to its end; return its result, or raise what it raises.

        An exception that interrupts it, of whatever kind, is thrown into the plan, and what the plan then asks for is
        still done.
        """
        running = object()
        try:
            self._running.add(running)
            return self._run(plan)
        finally:
            self._running.discard(running)

    def _run(self, plan: Plan[T]) -> T:
        resume: Callable[[Any], Step] = plan.send
        value: Any = None
        while True:
            try:
                step = resume(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                resume, value = plan.send, self._carry_out(step)
            except BaseException as error:  # noqa: BLE001 - the plan decides, and raises it again
                resume, value = plan.throw, error

    def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Broadcast):
            return self._fanout.ask((step,))[0]
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        return self._fanout.ask(step)

    def check(self) -> None:
        """Connect to all nodes that can be reached.

        Raises:
            SettingsError: One refuses our credentials, is no Redis server, or is listed under two names. A node that
                is down is no such thing.
        """
        self.run(check_nodes(len(self), self._timeout))

    def close(self) -> None:
        """Let plans that are under way take back what they wrote (for two time-outs at most), and close."""
        self._fanout.refuse()
        give_up = clock() + 2 * self._timeout
        while self._running and clock() < give_up:
            time.sleep(_CLOSING_PAUSE)
        self._fanout.close()
