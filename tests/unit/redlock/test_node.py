"""One node: its name without secrets, and what replies and exceptions mean as votes."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import redis
from redis.exceptions import InvalidResponse

from redlock import Redlock, SettingsError, VoteKind
from redlock.node import Node, fault, parse_nodes
from redlock.plan import Command
from redlock.resp import ReplyError
from redlock.scripts import EXTEND, RELEASE
from redlock.wire import closing_fault, packed, vote

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("redis://a", "a:6379/0"),
        ("redis://a:7000/2", "a:7000/2"),
        (f"redis://user:{SECRET}@a:7000", "a:7000/0"),
        (f"rediss://:{SECRET}@a:7000", "a:7000/0"),
        (f"redis://a:7000?password={SECRET}", "a:7000/0"),
        ("unix:///run/redis.sock", "/run/redis.sock/0"),
        (f"unix://user:{SECRET}@/run/redis.sock?db=3", "/run/redis.sock/3"),
    ],
)
def test_name_is_the_address_and_no_secret(source: str, name: str) -> None:
    """L79: the name is what errors, events and logs show."""
    assert Node(source).name == name


def test_client_is_only_configuration() -> None:
    """A redis-py client's address is taken; nothing is sent through it."""
    with redis.Redis(host="a", port=7000, db=1, password=SECRET) as client:
        assert Node(client).name == "a:7000/1"


@pytest.mark.parametrize(
    "source",
    [
        f"redis://user:{SECRET}@a:notaport",
        f"redis://user:{SECRET}@a:99999/0",
        f"redis://a:notaport/0?password={SECRET}",
        f"redis://a:1/0?password={SECRET}&db=x&socket_timeout=x",
        f"rediss://user:{SECRET}@[a:1",
        f"redis://user:{SECRET}@a:1/notadb",
        f"http://user:{SECRET}@a:1",
        f"user:{SECRET}@a:1",
        f"redis://:{SECRET}",
    ],
)
def test_bad_url_is_refused_without_its_password(source: str) -> None:
    """L79: the error says what is wrong, not what is secret."""
    with pytest.raises(SettingsError) as caught:
        parse_nodes([source])
    assert SECRET not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "source", ["", "a", "localhost:6379", "ftp://a", "redis://", "redis:///", 1, None, b"redis://a"]
)
def test_what_is_no_address_is_refused(source: Any) -> None:
    """A missing port is 6379, as everywhere; no address at all is nobody's intention."""
    with pytest.raises(SettingsError, match="node"):
        parse_nodes([source])


def test_unknown_option_in_a_url_is_refused_at_construction() -> None:
    """It would only fail once a connection is opened, on another thread."""
    with pytest.raises(SettingsError, match="a:1"):
        parse_nodes(["redis://a:1/0?no_such_option=1"])


@pytest.mark.parametrize("sources", ["redis://a", b"redis://a", None, {"redis://a"}, [], ()])
def test_nodes_are_a_list_of_at_least_one(sources: Any) -> None:
    """L06: no node at all is refused at construction."""
    with pytest.raises(SettingsError, match="nodes"):
        Redlock(sources)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_node_and_even_numbers_are_allowed(count: int) -> None:
    assert len(parse_nodes([f"redis://node{number}" for number in range(count)])) == count


def test_same_address_twice_is_refused() -> None:
    """L69: by name, as far as names tell."""
    with pytest.raises(SettingsError, match="a:6379/0 is listed twice"):
        parse_nodes(["redis://a", "redis://b", "redis://a:6379/0"])


def test_nodes_that_cannot_be_resolved_do_not_fail_construction() -> None:
    """L07: nothing is resolved or sent before the first call."""
    redlock = Redlock([f"redis://no-such-host-{number}.invalid" for number in range(5)])
    redlock.close()


def test_repr_shows_addresses_only() -> None:
    """L79: repr of the whole."""
    redlock = Redlock([f"redis://user:{SECRET}@a:7000"])
    assert repr(redlock) == "Redlock(a:7000/0)"
    redlock.close()


@pytest.mark.parametrize(
    ("reply", "kind", "rest"),
    [
        ([1], VoteKind.GRANTED, ()),
        ([1, 7, 30_000], VoteKind.GRANTED, (7, 30_000)),
        ([0, "held", 12, 30_000], VoteKind.REFUSED, ("held", 12, 30_000)),
        ([-1, "waiting", 700, "ab 1", "ab", 5], VoteKind.UNKNOWN, ("waiting", 700, "ab 1", "ab", 5)),
    ],
)
def test_reply_of_a_script_is_a_vote(reply: Any, kind: VoteKind, rest: tuple[Any, ...]) -> None:
    given = vote("n1", reply)
    assert (given.node, given.kind, given.reply) == ("n1", kind, rest)


@pytest.mark.parametrize(
    "fields",
    [[], [7], [7, 8], [7, 8, "a", "b"], ["7", 8, "a"], [7, None, "a"], [7, True, "a"], [7, [8], "a"]],
    ids=repr,
)
def test_grant_with_other_fields_than_the_scripts_is_no_vote(fields: list[Any]) -> None:
    """Whoever grants says with what; what has another form is not from our script."""
    assert vote("n1", [1, 7, 8, "a"], (int, int, int, str)).kind is VoteKind.GRANTED
    assert vote("n1", [1, *fields], (int, int, int, str)).kind is VoteKind.UNKNOWN


def test_refusal_with_a_list_that_is_no_refusal_of_the_guard_is_no_vote() -> None:
    """However deep: a list in a list in a list, a thousand times, would end in RecursionError where it was walked."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert vote("n1", [0, "done", deep]).kind is VoteKind.UNKNOWN
    given = vote("n1", [0, "done", ["waiting", 700, "", "ab", 5]])
    assert (given.kind, given.reply) == (VoteKind.REFUSED, ("done", ("waiting", 700, "", "ab", 5)))


def test_node_that_may_not_vote_says_until_when() -> None:
    assert vote("n1", [-1, "waiting", 700, "", "ab", 5]).cause == "may not vote (waiting) for 0.7 s"


@pytest.mark.parametrize(
    "reply",
    [
        *(None, 1, 0, b"1", "OK", "1", [], [2], [-2], [None], [b"1"], [[1]], [1.0], [True], {1: 1}, True, ["1"]),
        *([-1], [-1, "waiting", "long", "", "ab", 5], [-1, 1, 2, 3, 4, 5]),
    ],
    ids=repr,
)
def test_what_no_script_of_ours_says_is_unknown(reply: Any) -> None:
    """Only a list that begins with 1, 0 or -1 is an answer; anything else is doubt, and doubt is no vote."""
    given = vote("n1", reply)
    assert given.kind is VoteKind.UNKNOWN
    assert given.cause


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots",
        "BUSY Redis is busy running a script",
        "NOREPLICAS Not enough good replicas to write.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR Error running script",
        "max number of clients reached",
    ],
)
def test_error_reply_is_unknown_and_may_pass(text: str) -> None:
    """L11: an error is never "held"; its text is the cause."""
    given = vote("n1", ReplyError(text))
    assert (given.kind, given.cause, given.permanent) == (VoteKind.UNKNOWN, text, False)


@pytest.mark.parametrize(
    "text",
    [
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOPERM No permissions to access a key",
        "MOVED 1234 10.0.0.1:6379",
        "CLUSTERDOWN Hash slot not served",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "ERR DB index is out of range",
        "ERR unknown command 'EVALSHA', with args beginning with: ",
    ],
)
def test_error_reply_that_waiting_does_not_cure_is_permanent(text: str) -> None:
    given = vote("n1", ReplyError(text))
    assert (given.kind, given.cause, given.permanent) == (VoteKind.UNKNOWN, text, True)


@pytest.mark.parametrize("prefix", ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOAUTH"])
def test_node_in_the_wrong_state_closes_the_connection(prefix: str) -> None:
    assert closing_fault(ReplyError(f"{prefix} whatever")) is not None


@pytest.mark.parametrize("text", ["OOM x", "MISCONF x", "BUSY x", "NOSCRIPT x", "WRONGTYPE x", "ERR READONLY"])
def test_other_errors_leave_the_connection_alone(text: str) -> None:
    assert closing_fault(ReplyError(text)) is None


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (redis.AuthenticationError("invalid username-password pair"), True),
        (InvalidResponse("Protocol Error: H"), True),
        (redis.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), True),
        (redis.ResponseError("DB index is out of range"), True),
        (redis.ConnectionError("Error 111 connecting to a:1. Connection refused."), False),
        (redis.TimeoutError("Timeout connecting to server"), False),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), False),
        (redis.ConnectionError("max number of clients reached"), False),
        (OSError("No route to host"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_connecting_raised_becomes_a_fault(error: Exception, permanent: bool) -> None:  # noqa: FBT001
    translated = fault(error)
    assert translated.permanent is permanent
    assert str(error) in translated.cause


def test_command_travels_by_hash_and_what_may_come_late_by_text() -> None:
    """After we left nobody would be there to answer a NOSCRIPT."""
    extend = packed(Command(EXTEND, ("k",), ("t", 1)))
    release = packed(Command(RELEASE, ("k",), ("t",)))
    assert b"EVALSHA" in extend
    assert EXTEND.sha.encode() in extend
    assert b"EVALSHA" not in release
    assert RELEASE.text.encode() in release
    assert EXTEND.text.encode() in packed(Command(EXTEND, ("k",), ("t", 1)), by_text=True)
