"""The reader of replies: any split gives the same values, and garbage is never taken for a vote."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redlock import VoteKind
from redlock.resp import NO_REPLY, PENDING, ProtocolError, Reader, ReplyError, new_reader, pack, pack_plainly
from redlock.wire import vote

scalars = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=5), max_leaves=20)
error_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
line_text = st.binary(max_size=20).filter(lambda text: b"\r" not in text and b"\n" not in text)
replies = values | error_text.map(ReplyError)


def encoded(value: Any) -> bytes:
    """Return a RESP2 reply."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, ReplyError):
        return b"-%b\r\n" % str(value).encode()
    return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))


def plain(value: Any) -> Any:
    """Return a value that can be compared, errors included, and text as it is read."""
    if isinstance(value, Exception):
        return ("error", str(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def read(reader: Any, *chunks: bytes) -> list[Any]:
    """Return all the replies that a reader finds in chunks."""
    found = []
    for chunk in chunks:
        reader.feed(chunk)
        while (value := reader.gets()) is not PENDING:
            found.append(plain(value))
    return found


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(sent=st.lists(replies, max_size=6), cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_any_split_gives_the_same_values(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(map(encoded, sent))
    assert read(Reader(), *split(data, cuts)) == plain(sent)


@given(sent=replies)
def test_byte_by_byte_is_a_split_too(sent: Any) -> None:
    assert read(Reader(), *(bytes([byte]) for byte in encoded(sent))) == [plain(sent)]


@given(sent=replies, left=st.integers(1, 1_000))
def test_short_reply_stays_pending(sent: Any, left: int) -> None:
    data = encoded(sent)
    assert read(Reader(), data[: len(data) - 1 - left % len(data)]) == []


@given(sent=st.lists(replies, min_size=1, max_size=6), line=line_text)
def test_agrees_with_hiredis(sent: list[Any], line: bytes) -> None:
    hiredis = pytest.importorskip("hiredis")
    data = b"".join(map(encoded, sent)) + b"+%b\r\n*-1\r\n" % line
    theirs = new_reader()
    assert isinstance(theirs, hiredis.Reader)
    assert read(Reader(), data) == read(theirs, data)


VOTES = [b"*2\r\n:1\r\n:7\r\n", b"*3\r\n:0\r\n$4\r\nheld\r\n:5\r\n", b"*1\r\n:1\r\n"]
likely_bytes = st.sampled_from(b"0123456789\r\n*:$-+_#,(~%=!>|. xt")
edits = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3), likely_bytes | st.integers(0, 255)), min_size=1, max_size=3
)


def damaged(data: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    """Change, insert or leave out single bytes."""
    for position, how, byte in changes:
        at = position % (len(data) + 1)
        data = data[:at] + (b"" if how == 0 else bytes([byte])) + data[at + (how != 1) :]
    return data


@example(data=VOTES[0], changes=[(0, 2, ord(">"))])  # a push is no reply
@given(data=st.sampled_from(VOTES), changes=edits)
def test_damaged_reply_is_a_vote_for_us_only_if_it_is_for_hiredis(data: bytes, changes: list[Any]) -> None:
    hiredis = pytest.importorskip("hiredis")
    data = damaged(data, changes)
    theirs = new_reader()
    assert isinstance(theirs, hiredis.Reader)
    ours = _votes(Reader(), data)
    assert ours == _votes(theirs, data)[: len(ours)]


@pytest.mark.parametrize(
    "data",
    [
        b"*1\r\n: 1\r\n",
        b"*1\r\n:+1\r\n",
        b"*2\r\n:1\r\n:1_0\r\n",
        b"*1\r\n:01\r\n",
        b"*1\r\n:-0\r\n",
        b"*2\r\n:1\r\n:9223372036854775808\r\n",
        b"*01\r\n:1\r\n",
        b"*+1\r\n:1\r\n",
        b"*0_1\r\n:1\r\n",
        b"* 1\r\n:1\r\n",
        b"*2\r\n:1\r\n$-2\r\n",
        b"*2\r\n:1\r\n*-2\r\n",
        b"*2\r\n:1\r\n_7\r\n",
        b"*2\r\n:1\r\n+a\rb\r\n",
        b"*2\r\n:1\r\n-a\nb\r\n",
        b"*2\r\n:1\r\n=4\r\nabcd\r\n",
        b"*2\r\n:1\r\n!3\r\nERR\r\n",
        b"*2\r\n:1\r\n#7\r\n",
        b"*2\r\n:1\r\n%1\r\n*0\r\n:1\r\n",
        b"*1\r\n(1\r\n",
    ],
)
@pytest.mark.parametrize("new", [Reader, new_reader])
def test_what_no_server_sends_is_no_vote(new: Callable[[], Any], data: bytes) -> None:
    """What Python's int() takes, and the like, shows that we lost our place."""
    assert _votes(new(), data) == []


def _votes(reader: Any, data: bytes) -> list[VoteKind]:
    """Return the known votes up to the first thing that is no reply."""
    found: list[VoteKind] = []
    reader.feed(data)
    try:
        while (value := reader.gets()) is not PENDING:
            found.append(vote("n", value).kind)
    except NO_REPLY:
        pass
    return [kind for kind in found if kind is not VoteKind.UNKNOWN]


@given(data=st.binary(max_size=200))
def test_garbage_is_an_error_or_unfinished_or_no_vote(data: bytes) -> None:
    """Random bytes raise ProtocolError, wait for more, or are values that are no vote; nothing else is raised."""
    assert _votes(Reader(), data) == []


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\x15\x03\x01\x00\x02\x02\x0a\r\n",
        b":one\r\n",
        b"$x\r\n",
        b"$3\r\nabcd\r\n",
        b"*1\r\n?\r\n",
        b"*1\r\n" * 100_000,
        b"+" + b"x" * 100_000,
    ],
    ids=["HTTP", "SSH", "TLS alert", "word", "size", "length", "type within", "endless nesting", "endless line"],
)
def test_what_is_no_reply_raises(data: bytes) -> None:
    reader = Reader()
    reader.feed(data)
    with pytest.raises(ProtocolError):
        reader.gets()


@pytest.mark.parametrize("broken", [b"?\r\n", b":one\r\n"])
def test_reader_stays_unusable_after_garbage(broken: bytes) -> None:
    """A place that was lost is never found again: what follows is no reply either."""
    reader = Reader()
    for chunk in (broken, b"*1\r\n:1\r\n"):
        reader.feed(chunk)
        with pytest.raises(ProtocolError):
            reader.gets()


@given(parts=st.lists(st.text(max_size=20) | st.integers(), min_size=1, max_size=6).map(tuple))
def test_packed_command_reads_back_as_its_parts(parts: tuple[str | int, ...]) -> None:
    assert read(Reader(), pack_plainly(parts)) == [[str(part) for part in parts]]
    assert pack(parts) == pack_plainly(parts)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"_\r\n", None),
        (b"=9\r\ntxt:redis\r\n", "redis"),
        (b"%1\r\n$4\r\nsave\r\n$0\r\n\r\n", {"save": ""}),
    ],
)
@pytest.mark.parametrize("new", [Reader, new_reader])
def test_types_of_resp3(new: Callable[[], Any], data: bytes, value: Any) -> None:
    """L58: a client with protocol=3 is answered in these by scripts, INFO and CONFIG GET."""
    assert read(new(), data) == [value]
