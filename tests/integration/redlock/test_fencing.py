"""The fencing token on real nodes: every later lease has a larger one."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from redlock import FencingUnavailableError, LockHeldError
from redlock.local import LocalNodes
from tests.tools.peek import ask, happens, values


@pytest.mark.timeout(120)
def test_tokens_grow_while_nodes_come_and_go(nodes3: LocalNodes, serving: Any, proxied: Any) -> None:
    """L75: a thousand leases, rotating outages of one node; a plain maximum of counters would repeat and go back."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    tokens = []
    for number in range(1_000):
        if number % 20 == 0:
            proxies[number // 20 % 3].set("refuse")
            proxies[(number // 20 - 1) % 3].set("pass")
        lease = redlock.acquire("r", ttl=10.0, wait=3.0)
        tokens.append(lease.fencing_token)
        lease.release()
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens)), tokens
    assert all(proxy.observed["refuse"] for proxy in proxies)


def test_token_of_a_holder_that_slept_is_smaller_than_its_successors(trio: LocalNodes, serving: Any) -> None:
    """L75: a store that refuses what is below the largest it has seen takes nothing of the first holder any more."""
    redlock = serving(trio)
    first = redlock.acquire("r", ttl=0.2)
    before = first.fencing_token
    time.sleep(0.25)
    second = redlock.acquire("r", ttl=5.0)
    assert before < second.fencing_token
    assert first.fencing_token == before


def test_extension_and_hand_over_keep_the_token(trio: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """L75: it is the lease's, not the round's."""
    redlock = serving(trio)
    lease = redlock.acquire("r")
    token = lease.fencing_token
    assert lease.extend()
    assert lease.fencing_token == token
    assert make_redlock(trio).attach("r", lease.token).fencing_token == token


def test_foreign_token_cannot_be_attached(trio: LocalNodes, serving: Any) -> None:
    redlock = serving(trio)
    lease = redlock.acquire("r")
    with pytest.raises(LockHeldError):
        redlock.attach("r", "somebody else's")
    assert happens(lambda: values(trio, "r") == [lease.token] * 3)


def test_lease_that_ended_cannot_be_attached(trio: LocalNodes, serving: Any) -> None:
    """L37: attaching is extending: it revives nothing."""
    redlock = serving(trio)
    lease = redlock.acquire("r", ttl=0.2)
    time.sleep(0.25)
    with pytest.raises(LockHeldError):
        redlock.attach("r", lease.token)
    assert values(trio, "r") == [None] * 3


def test_counters_are_exact_beyond_double_precision_of_text(trio: LocalNodes, serving: Any) -> None:
    """Sixteen digits survive Lua: neither rounded nor written with an exponent."""
    redlock = serving(trio)
    for node in trio:
        ask(node.url, "SET", "redlock:fence:r", 1_870_000_000_123_455)
    assert redlock.acquire("r").fencing_token == 1_870_000_000_123_456
    assert happens(lambda: all(ask(node.url, "GET", "redlock:fence:r") == "1870000000123456" for node in trio))


def test_without_the_guard_no_token_is_vouched_for(trio: LocalNodes, make_redlock: Any) -> None:
    lease = make_redlock(trio, restart_guard=False).acquire("r")
    with pytest.raises(FencingUnavailableError, match="guard"):
        lease.fencing_token  # noqa: B018 - reading it is what is tested
