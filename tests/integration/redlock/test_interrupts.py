"""A thread is hit by an exception from outside, as a time limit raises it, at any line of ours: it alone fails."""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redlock
from redlock import Event, NodeDown, Nodes, helper
from redlock.local import LocalNodes
from tests.tools.peek import happens
from tests.tools.plans import asking

FOLDER = str(Path(redlock.__file__).parent)
TIMEOUT = 0.4


class InterruptedHere(BaseException):
    """What hits a thread from outside."""


@pytest.fixture
def nodes(nodes3: LocalNodes) -> Iterator[Nodes]:
    nodes = Nodes(nodes3.urls, TIMEOUT, observer=lambda _event: None)
    nodes.check()
    yield nodes
    nodes.close()


@contextlib.contextmanager
def others_asking(nodes: Nodes, count: int) -> Iterator[list[int]]:
    """Let threads ask all the time; yield how many nodes answered each of their questions."""
    ends, answers = threading.Event(), []

    def ask() -> None:
        while not ends.is_set():
            answers.append(nodes.run(asking()))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ends.set()
        for thread in threads:
            thread.join(5.0)
    assert not [thread for thread in threads if thread.is_alive()]


def interrupted(work: Callable[[], Any], line: int) -> str:
    """Do something on a thread that is hit at the so manieth of our lines; return where, or nothing if it was not."""
    left, where = line, ""

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal left, where
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and not _takes_a_lock(frame):
            left -= 1
            if not left:
                where = " < ".join(
                    f"{each.name}:{each.lineno}" for each in reversed(traceback.extract_stack(frame)[-6:])
                )
                raise InterruptedHere
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            work()
        except InterruptedHere:
            pass
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    return where


def _takes_a_lock(frame: Any) -> bool:
    """Tell whether this is a with statement: the interpreter lets no interrupt hit between a lock and its block."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def test_interrupt_at_any_line_hits_nobody_else(nodes: Nodes) -> None:
    """Beside it another thread asks all the time; afterwards whoever asks is answered, by fresh connections."""
    hits = set()
    with others_asking(nodes, 1) as answers:
        for line in range(1, 450):
            if where := interrupted(lambda: nodes.run(asking()), line):  # fewer lines where the other thread leads
                hits.add(where)
                assert happens(lambda: nodes.run(asking()) >= 2), f"nobody is answered after an interrupt at {where}"
    assert len(hits) > 100
    assert answers.count(0) <= len(hits), "at most what was under way with one"


def test_interrupt_while_the_observer_is_told_of_a_node(nodes3: LocalNodes) -> None:
    """What it does may take long, so that this is where a time limit hits."""
    hits = []

    def observer(event: Event) -> None:
        if isinstance(event, NodeDown) and not hits:
            hits.append(event)
            raise InterruptedHere

    nodes = Nodes(nodes3.urls, TIMEOUT, observer=observer)
    nodes.check()
    nodes3[0].kill()
    with pytest.raises(InterruptedHere):
        happens(lambda: nodes.run(asking()) == 0, within=5.0)
    nodes3[0].restart()
    assert happens(lambda: nodes.run(asking(least=3)) == 3, within=5.0)
    nodes.close()


def test_what_cannot_be_sent_is_said_to_whoever_asks_it(nodes: Nodes) -> None:
    """It is packed on the thread that asks; others, who share the connections, do not notice."""
    with others_asking(nodes, 3) as answers:
        for _ in range(200):
            with pytest.raises(UnicodeEncodeError):
                nodes.run(asking(arguments=("\ud800",)))
    assert min(answers) >= 2


def test_no_thread_to_be_had_is_a_node_that_is_away(
    nodes: Nodes, nodes3: LocalNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def started(*_arguments: object) -> threading.Thread:
        tries.append(_arguments)
        raise RuntimeError("can't start new thread")

    nodes._fanout._helper.end()
    with monkeypatch.context() as patch:
        patch.setattr(helper, "_started", started)
        nodes3[0].kill()
        nodes3[0].restart()
        assert happens(lambda: nodes.run(asking()) < 2 or len(tries) >= 2)
        assert len(tries) >= 2, "it was not even tried"
    assert happens(lambda: nodes.run(asking(least=3)) == 3, within=5.0)


def test_closing_while_somebody_leads_closes_the_connections(nodes3: LocalNodes) -> None:
    """Whoever leads does it when nobody follows."""
    nodes = Nodes(nodes3.urls, TIMEOUT, observer=lambda _event: None)
    nodes.check()
    members = nodes._fanout._members
    nodes3[2].pause()
    leading = threading.Thread(target=nodes._fanout.ask, args=([next(asking(least=3, timeout=3.0))],))
    leading.start()
    assert happens(lambda: members.waits_since < float("inf"))
    nodes.close()
    leading.join(5.0)
    assert not [member for member in members.all if member.link.is_open]
    nodes3[2].resume()


def test_thread_that_is_interrupted_while_it_leaves_takes_nobody_with_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led, and its last step is not carried out; whoever asks next still finds somebody who asks for all."""
    fanout, hit = nodes._fanout, []

    def wake_settled() -> None:
        if not hit and fanout._leader is not None and not fanout._leader.is_open:
            hit.append(fanout._leader)
            raise InterruptedHere
        type(fanout)._wake_settled(fanout)

    monkeypatch.setattr(fanout, "_wake_settled", wake_settled)
    with pytest.raises(InterruptedHere):
        nodes.run(asking())
    assert hit
    assert nodes.run(asking()) >= 2
