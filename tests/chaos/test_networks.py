"""A proxy in front of each node fails in nine ways, at a minority of the nodes at once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from redlock.local import LocalNodes
from tests.chaos.fleet import QUIET, Fleet, Hit, times
from tests.tools.fault_proxy import FaultProxy

pytestmark = pytest.mark.chaos

MODES: dict[str, tuple[Any, ...]] = {
    "refuse": (),
    "reset": (),
    "hang": (),
    "drop_requests": (),
    "drop_replies": (),
    "delay": (0.2, 0.2),
    "inject": (b"+OK\r\n",),
    "garbage": (),
    "cut": (7,),
}


def _fails(proxy: FaultProxy, mode: str, index: int) -> Hit:
    return Hit(lambda: proxy.set(mode, *MODES[mode]), lambda: proxy.set("pass", kill_connections=True), {"node": index})


def test_networks(nodes: LocalNodes, tmp_path: Path, judge: Any, record_property: Any) -> None:
    """Each way as often as the others; bytes or connections have met each."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", node.port)) for node in nodes]
        fleet = stack.enter_context(Fleet(tmp_path, [proxy.url for proxy in proxies], looks_at=nodes.urls))
        for number in range(len(MODES) * len(times(5))):
            mode = list(MODES)[number % len(MODES)]
            hit = fleet.random.sample(range(len(nodes)), (len(nodes) - 1) // 2)
            faults = [_fails(proxies[index], mode, index) for index in hit]
            fleet.fault(f"proxy {mode}", fleet.random.uniform(0.15, 0.35), *faults)
            sleep(QUIET)
        judge(fleet, fleet.names, noticed=0.3)
        for mode in MODES:
            count = sum(proxy.observed[mode] for proxy in proxies)
            record_property(f"met {mode}", count)
            assert count, f"no byte and no connection met {mode}"
