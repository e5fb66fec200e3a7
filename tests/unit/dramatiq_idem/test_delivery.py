"""One delivery's state, its delayed copy, and what is kept of a result."""

from __future__ import annotations

import pytest
from dramatiq import Message
from dramatiq.broker import MessageProxy
from hypothesis import given
from hypothesis import strategies as st

from dramatiq_idem import delivery as deliveries
from dramatiq_idem.delivery import Delivery, deferred_copy, encode_result, mute_results
from dramatiq_idem.judgement import Busy
from dramatiq_idem.policies import DEFERRALS
from dramatiq_idem.record import Record, State

HOLDER = Record(State.RUNNING, 0, 1, "t", 0, 0, "", "other")
FOR_EVER = Busy(HOLDER, 1e9)


def message(**options):
    return MessageProxy(Message("default", "pay", (1,), {"x": 2}, options, message_timestamp=5))


def deferred(times, reason="busy"):
    return message(**{DEFERRALS: [reason, times]})


# -- the delay


@given(st.integers(0, 10**9), st.booleans())
def test_delay_doubles_up_to_a_cap_within_a_quarter(times, is_busy):
    """Busy from 250 ms to 30 s, no quorum from 5 s to a minute; never zero, never without bound."""
    first, longest, reason, busy = (250, 30_000, "busy", FOR_EVER) if is_busy else (5_000, 60_000, "unavailable", None)
    expected = min(longest, first * 2 ** min(times, 20))
    copy = deferred_copy(deferred(times, reason), busy)
    assert expected * 0.75 - 1 <= copy.delay_ms <= expected * 1.25 + 1
    assert copy.message.options[DEFERRALS] == [reason, times + 1]


def test_delay_is_jittered():
    """Copies of one moment do not come back in one moment."""
    assert len({deferred_copy(deferred(5), FOR_EVER).delay_ms for _ in range(50)}) > 10


@pytest.mark.parametrize("left", [0.0, 0.001, 0.1, 1.0, 20.0])
def test_delay_is_bounded_by_the_holders_lease(left):
    """After its end the key is free, so nobody waits much longer than that; nor does the copy come before."""
    delays = [deferred_copy(deferred(20), Busy(HOLDER, left)).delay_ms for _ in range(50)]
    assert max(delays) <= left * 1000 + 51
    assert min(delays) >= min(left * 1000, 30_000 * 0.75)
    assert min(delays) >= 1


@pytest.mark.parametrize(
    ("before", "busy", "expected"),
    [
        ([], FOR_EVER, ["busy", 1]),
        (["busy", 3], FOR_EVER, ["busy", 4]),
        (["unavailable", 3], FOR_EVER, ["busy", 1]),
        (["busy", 3], None, ["unavailable", 1]),
        (["unavailable", 3], None, ["unavailable", 4]),
    ],
)
def test_deferrals_are_counted_per_reason(before, busy, expected):
    """A key that was busy for long does not make an outage's first delay long."""
    copy = deferred_copy(message(**({DEFERRALS: before} if before else {})), busy)
    assert copy.message.options[DEFERRALS] == expected


def test_copy_keeps_identity_age_and_retries():
    """Only the count of deferrals changes; the delivery's own options stay as they are."""
    delivery = message(retries=2, store_results=True, max_age=9)
    copy = deferred_copy(delivery, None).message
    assert (copy.message_id, copy.message_timestamp) == (delivery.message_id, 5)
    assert (copy.queue_name, copy.actor_name, copy.args, copy.kwargs) == ("default", "pay", (1,), {"x": 2})
    assert copy.options == {"retries": 2, "store_results": True, "max_age": 9, DEFERRALS: ["unavailable", 1]}
    assert delivery.options == {"retries": 2, "store_results": True, "max_age": 9}


def test_muting_a_delivery_leaves_its_copy_alone():
    """The copy's result is stored once it runs."""
    delivery = message(store_results=True)
    copy = deferred_copy(delivery, None).message
    mute_results(delivery)
    assert delivery.options["store_results"] is False
    assert copy.options["store_results"] is True


# -- the state on the proxy


def test_state_belongs_to_one_delivery():
    """Two deliveries of one message share nothing, and what was popped is gone."""
    first, second = message(), message()
    mine = Delivery()
    deliveries.attach(first, mine)
    assert deliveries.of(first) is mine
    assert deliveries.of(second) is None
    assert deliveries.pop(first) is mine
    assert deliveries.pop(first) is None
    assert deliveries.of(first) is None


def test_state_does_not_travel():
    """Neither in the message's options nor in a copy of it."""
    delivery = message()
    deliveries.attach(delivery, Delivery())
    assert delivery.options == {}
    assert not hasattr(delivery.copy(), "_dramatiq_idem")


def test_end_of_a_claim_ends_its_renewal_once():
    """However many hooks ask for it."""
    ends = []

    class Keeper:
        def end(self):
            ends.append(1)

    delivery = Delivery(keeper=Keeper())
    delivery.end_claim()
    delivery.end_claim()
    assert ends == [1]


# -- results


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "null"),
        (42, "42"),
        ({"a": [1, 2]}, '{"a":[1,2]}'),
        ("ключ", '"\\u043a\\u043b\\u044e\\u0447"'),
        (object(), ""),
        ({1, 2}, ""),
        ({(1, 2): 3}, ""),
        (b"x", ""),
        ("x" * 98, '"' + "x" * 98 + '"'),
        ("x" * 99, ""),
    ],
)
def test_result_is_kept_as_compact_json_or_not_at_all(result, text):
    """What JSON cannot carry, or is too large, is left out; the completion itself is recorded all the same."""
    assert encode_result(result, 100) == text


def test_endless_result_is_left_out():
    """A result that contains itself does not keep its completion from being recorded."""
    endless = []
    endless.append(endless)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert encode_result(endless, 100) == ""
    assert encode_result(deep, 100) == ""


@given(st.text(max_size=60))
def test_kept_result_is_one_line_of_ascii(text):
    """People read records with redis-cli; the size limit counts bytes."""
    encoded = encode_result(text, 10_000)
    assert encoded.isascii()
    assert "\n" not in encoded
