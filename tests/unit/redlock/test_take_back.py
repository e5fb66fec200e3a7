"""The round that takes back what an attempt may have written."""

from __future__ import annotations

from redlock.plan import Command, take_back
from redlock.scripts import UNDO as UNDO_SCRIPT
from tests.tools.plans import spelled

UNDO = Command(UNDO_SCRIPT, ("redlock:lock:r",), ("t",), worth=30.0)


def test_refused_nodes_are_not_told() -> None:
    told = take_back(UNDO, spelled("GRU"), 3, 0.5).commands
    assert [command and command.worth for command in told] == [30.0, None, 0.0]


def test_interrupted_attempt_is_taken_back_everywhere_even_later() -> None:
    """A node may have granted and been disconnected since: then nothing else will tell it.

    When the thread that asks for all is interrupted, it drops the connections in use. The undo of what was not
    answered goes with them; what was answered already is undone by this round alone, once the node is back.
    """
    told = take_back(UNDO, None, 3, 0.5).commands
    assert [command and command.worth for command in told] == [30.0] * 3
