"""What a run did and saw, kept for its picture: the drill's own deeds, and all lines of the workers' journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dramatiq_idem.demo.journal import Entry

__all__ = ["KILLS", "Deed", "History", "What"]


class What(Enum):
    """What was done to a process."""

    START_WORKER = "start worker"
    KILL_WORKER = "kill worker"
    KILL_NODE = "kill node"
    RESTART_NODE = "restart node"


KILLS: Final = (What.KILL_WORKER, What.KILL_NODE)


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that was done to a worker or a node.

    Args:
        what: Which of the things.
        index: Of the worker or node, from 0.
        at: When, by `time.monotonic`: a killed worker is dead by then, a killed node still alive, a restarted one back.
        text: What the demo said about it.
        group: The worker's process group; 0 for nodes.
    """

    what: What
    index: int
    at: float
    text: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """One run as it was; all times by `time.monotonic`.

    Args:
        began: When the first process was started.
        ended: When the queues were found empty, or the run was given up.
        nodes: The nodes' names, as events have them.
        deeds: In order.
        entries: The journals, each in the order of writing, by the worker's process group.
        last: The kind of line that ends a run of the body that went well.
    """

    began: float
    ended: float
    nodes: Sequence[str]
    deeds: Sequence[Deed]
    entries: Mapping[int, Sequence[Entry]]
    last: str
