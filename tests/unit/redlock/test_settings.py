"""Settings: whatever can never work is refused before any IO, and no two names share a key."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redlock import Redlock, Settings, SettingsError
from redlock.settings import LONGEST_KEY, check_resource, seconds

NOT_SECONDS = {
    "zero": 0,
    "negative": -1,
    "1 ms": 0.001,
    "2 ms, all of it drift": 0.002,
    "nan": math.nan,
    "inf": math.inf,
    "bool": True,
    "text": "10",
    "text in exponent form": "1e3",
    "bytes": b"10",
    "huge": 2**63,
    "an immortal lock": 2**62 / 1000,
    "zero timedelta": timedelta(0),
    "negative timedelta": timedelta(seconds=-1),
}
bad_ttls = pytest.mark.parametrize("ttl", NOT_SECONDS.values(), ids=NOT_SECONDS.keys())


@bad_ttls
def test_ttl_that_can_never_work_is_refused_at_construction(ttl: Any) -> None:
    """L36: before any IO, and the error names the argument."""
    with pytest.raises(SettingsError, match="ttl"):
        Redlock(["redis://127.0.0.1:1"], ttl=ttl)


@bad_ttls
def test_ttl_that_can_never_work_is_refused_at_the_call(ttl: Any) -> None:
    """L36: before any IO; nobody listens at this address."""
    redlock = Redlock(["redis://127.0.0.1:1"])
    with pytest.raises(SettingsError, match="ttl"):
        redlock.acquire("r", ttl=ttl)
    redlock.close()


def test_no_ttl_at_all_means_the_documented_one() -> None:
    """L81: None never means a lock without end: ten seconds, or max_ttl if that is shorter."""
    assert Settings(ttl=None).ttl_ms("ttl") == 10_000
    assert Settings(ttl=None, max_ttl=3.0).ttl_ms("ttl") == 3_000


def test_ttl_of_a_call_defaults_to_the_documented_one() -> None:
    """L81: None at the call means the default, ten seconds."""
    assert Settings().ttl_ms("ttl", None) == 10_000


@pytest.mark.parametrize(
    ("given_ttl", "sent"),
    [(1.5, 1500), (timedelta(seconds=1.5), 1500), (1, 1000), (0.2, 200), (29.999, 29_999), (30, 30_000)],
)
def test_ttl_is_sent_as_whole_milliseconds(given_ttl: Any, sent: int) -> None:
    """L36: seconds or a timedelta, never taken for milliseconds."""
    assert Settings().ttl_ms("ttl", given_ttl) == sent


def test_ttl_above_max_ttl_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"ttl must be between 0 and 5 seconds"):
        Settings(ttl=1.0, max_ttl=5.0).ttl_ms("ttl", 5.001)


@given(ttl=st.floats(0.003, 30.0))
def test_sent_ttl_is_never_longer_than_asked(ttl: float) -> None:
    """A lease that ends a millisecond early is safe, one that ends late is not."""
    try:
        sent = Settings().ttl_ms("ttl", ttl)
    except SettingsError:
        assert ttl < 0.004
    else:
        assert ttl - 0.002 < sent / 1000 <= ttl


@pytest.mark.parametrize("value", [None, "1", b"1", True, [], math.nan, math.inf, -0.1])
def test_wait_must_be_seconds(value: Any) -> None:
    with pytest.raises(SettingsError, match="wait"):
        seconds("wait", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", ""),
        ("namespace", b"bytes"),
        ("namespace", None),
        ("namespace", "new\nline"),
        ("namespace", "nul\0"),
        ("namespace", "\ud800"),
        ("drift", -0.01),
        ("drift", 0.5),
        ("drift", math.nan),
        ("drift", True),
        ("drift", "0.01"),
        ("max_ttl", 0),
        ("max_ttl", math.inf),
        ("max_ttl", 86_401),
        ("node_timeout", 0),
        ("node_timeout", -1),
        ("node_timeout", math.nan),
        ("node_timeout", None),
        ("counter_life", 1.0),  # shorter than max_ttl
    ],
)
def test_bad_setting_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings(**{name: value})


@pytest.mark.parametrize(
    "resource",
    [
        "a",
        "with spaces",
        "new\r\nline",
        "nul\0",
        "{tag}",
        "*?[a]",
        "a:b",
        "über",
        "\N{RIGHT-TO-LEFT OVERRIDE}x",
        "🔒",
        "k" * LONGEST_KEY,
    ],
)
def test_any_text_may_name_a_resource(resource: str) -> None:
    assert check_resource(resource) == resource


@pytest.mark.parametrize(
    "resource",
    ["", None, 1, b"bytes", ["a"], "k" * (LONGEST_KEY + 1), "ü" * (LONGEST_KEY // 2 + 1), "k" * 1_000_000, "\ud800"],
    ids=["empty", "None", "int", "bytes", "list", "too long", "too long as UTF-8", "1 MB", "lone surrogate"],
)
def test_bad_resource_is_refused(resource: Any) -> None:
    with pytest.raises(SettingsError, match="resource"):
        check_resource(resource)


kinds = st.sampled_from(["lock", "fence", "record"])
names = st.text(min_size=1, max_size=20) | st.text(":lockfencmarkrd", min_size=1, max_size=12)


@given(one=st.tuples(kinds, names), other=st.tuples(kinds, names))
def test_no_two_names_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Keys are injective in kind and name, separators within the names included."""
    assume(one != other)
    assert Settings().key(*one) != Settings().key(*other)
    assert Settings().key("marker") not in {Settings().key(*one), Settings().key(*other)}


def test_no_two_namespaces_share_a_key() -> None:
    """A separator in a namespace cannot lead into another one; refusing such a namespace is as good."""

    def key(namespace: str, name: str) -> str | None:
        try:
            return Settings(namespace=namespace).key("lock", name)
        except SettingsError:
            return None

    assert key("a", "lock:x") != key("a:lock", "x")


def test_keys_begin_with_the_namespace() -> None:
    """L77: one pattern in an access list covers them all."""
    settings = Settings(namespace="shop")
    assert {settings.key("lock", "x"), settings.key("fence", "x"), settings.key("marker")} == {
        "shop:lock:x",
        "shop:fence:x",
        "shop:marker",
    }


def test_guard_waits_longer_than_any_lease_on_a_slow_clock() -> None:
    """The wait exceeds max_ttl by twice the drift; "0" is said only where the guard was switched off by name."""
    assert float(Settings(drift=0.01).guard) == pytest.approx(1.02)
    assert Settings(restart_guard=False).guard == "0"
