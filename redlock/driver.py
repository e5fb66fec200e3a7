"""The thread driver: carries plans out on real nodes. It holds no arithmetic and no rule."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tenacity
from tenacity.wait import wait_base

from redlock.errors import SettingsError
from redlock.events import Observer, log_event
from redlock.fanout import Fanout
from redlock.node import NodeSource, parse_nodes
from redlock.plan import Broadcast, Clock, Command, Plan, Sleep
from redlock.quorum import Vote
from redlock.scripts import load

__all__ = ["Nodes", "clock", "new_token", "pauses"]

T = TypeVar("T")
_PING = Command(load("redlock", "ping", by_text=True), (), ())


def _pick_clock() -> Clock:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boottime is None else lambda: time.clock_gettime(boottime)


clock: Clock = _pick_clock()
"""Seconds that count while the machine is suspended, where the system has such a clock; else monotonic ones."""


def new_token() -> str:
    """Return a fresh owner token: 128 random bits as 22 characters."""
    return secrets.token_urlsafe(16)


def pauses(wait: wait_base) -> Iterator[float]:
    """Return the pauses between attempts, as a tenacity wait strategy gives them, in seconds."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    while True:
        yield float(wait(state))
        state.attempt_number += 1


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
        self, sources: Sequence[NodeSource], node_timeout: float = 0.5, observer: Observer = log_event
    ) -> None:
        self._timeout = node_timeout
        self._fanout = Fanout(parse_nodes(sources), node_timeout, clock, observer)

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
        resume: Callable[[], Broadcast | Sleep] = plan.__next__
        while True:
            try:
                step = resume()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                value = self._carry_out(step)
            except BaseException as error:  # noqa: BLE001 - the plan decides, and raises it again
                resume = _bound(plan.throw, error)
            else:
                resume = _bound(plan.send, value)

    def _carry_out(self, step: Broadcast | Sleep) -> list[Vote] | None:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        return self._fanout.ask([step])[0]

    def run_together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Carry out plans that do not sleep in step, the broadcasts of all as one pipeline per node.

        Returns:
            For each plan its result, or the exception that it raised.
        """
        results: list[Any] = [None] * len(plans)
        values: dict[int, Any] = dict.fromkeys(range(len(plans)))
        while values:
            steps: dict[int, Any] = {}
            for index, value in values.items():
                try:
                    steps[index] = plans[index].send(value)
                except StopIteration as end:  # noqa: PERF203 - each plan ends for itself
                    results[index] = end.value
                except Exception as error:  # noqa: BLE001 - one plan must not stop the others
                    results[index] = error
            values = dict(zip(steps, self._fanout.ask(list(steps.values())), strict=True)) if steps else {}
        return results

    def check(self) -> None:
        """Connect to all nodes that can be reached.

        Raises:
            SettingsError: One refuses our credentials, is no Redis server, or is listed under two names. A node that
                is down is no such thing.
        """
        votes = self._fanout.ask([Broadcast.to_all(_PING, len(self), self._timeout)])[0]
        wrong = [f"{vote.node}: {vote.cause}" for vote in votes if vote.permanent]
        if wrong:
            raise SettingsError(f"nodes that can never work as they are configured: {'; '.join(wrong)}")

    def close(self) -> None:
        """Close the connections."""
        self._fanout.close()


def _bound(function: Callable[[Any], Any], argument: Any) -> Callable[[], Any]:
    return lambda: function(argument)
