"""The thread beside those of the user: one, in order, and gone with what it works for."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from redlock.helper import Helper
from tests.tools.peek import happens


def names() -> list[int | None]:
    return [thread.ident for thread in threading.enumerate() if thread.name == "redlock-helper"]


@pytest.fixture(autouse=True)
def _none_before() -> None:
    gc.collect()
    assert happens(lambda: names() == [])


def test_jobs_that_may_wait_are_done_in_order_by_one_thread() -> None:
    helper, done, who = Helper(), [], set()

    def job(number: int) -> None:
        done.append(number)
        who.add(threading.get_ident())

    for number in range(50):
        helper.do(lambda number=number: job(number), may_wait=True)  # type: ignore[misc]
    assert happens(lambda: len(done) == 50)
    assert done == list(range(50))
    assert len(who) == 1
    assert names() == list(who)
    helper.end()
    assert happens(lambda: names() == [])


def test_job_that_may_not_wait_gets_a_thread_of_its_own_while_the_helper_is_busy() -> None:
    helper, goes_on, done = Helper(), threading.Event(), threading.Event()
    helper.do(lambda: goes_on.wait(5.0) and None, may_wait=False)
    helper.do(done.set, may_wait=False)
    assert done.wait(5.0)
    goes_on.set()
    assert happens(lambda: len(names()) == 1)
    helper.end()


def test_job_that_fails_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    helper, done = Helper(), threading.Event()
    with caplog.at_level(logging.ERROR, "redlock.helper"):
        helper.do([].pop, may_wait=True)
        helper.do(done.set, may_wait=True)
        assert done.wait(5.0)
    assert "IndexError" in caplog.text
    helper.end()


def test_thread_ends_when_nobody_holds_the_helper() -> None:
    helper, done = Helper(), threading.Event()
    helper.do(done.set, may_wait=True)
    assert done.wait(5.0)
    del helper
    assert happens(lambda: names() == [])


def test_job_after_the_end_is_done_too() -> None:
    helper, done = Helper(), threading.Event()
    helper.end()
    helper.do(done.set, may_wait=True)
    assert done.wait(5.0)
    helper.end()
