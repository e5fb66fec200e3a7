"""Packing commands and reading replies: the part of the protocol that the fan-out needs without a blocking socket.

Connecting, TLS and authentication are redis-py's; once a connection stands, one thread serves many of them at once,
which no blocking reader can do. hiredis packs and reads where it is installed, else `pack_plainly` and `Reader`, with
the same results for all that a server answers to us.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

try:  # here, not on the threads that connect: of an import that fails, another thread sees half a module
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

__all__ = ["NO_REPLY", "PENDING", "ProtocolError", "Reader", "ReplyError", "new_reader", "pack", "pack_plainly"]


class ProtocolError(Exception):
    """The bytes are not a reply; whoever sent them is no Redis server, or we lost our place."""


class ReplyError(Exception):
    """The server answered with an error."""


PENDING = object()
"""What a reader returns while the next reply is not complete."""
NO_REPLY = (ProtocolError, TypeError, MemoryError)
"""What readers raise at bytes that are no reply; hiredis the last two, at a list for a key and at an endless list."""


def pack_plainly(parts: tuple[str | int, ...]) -> bytes:
    """Return a command as it goes over the wire."""
    texts = [*map(str, parts)]
    packed = "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])
    if not packed.isascii():  # a length is one of bytes
        packed = "".join([f"${len(text.encode())}\r\n{text}\r\n" for text in texts])
    return f"*{len(texts)}\r\n{packed}".encode()


pack: Callable[[tuple[str | int, ...]], bytes] = getattr(hiredis, "pack_command", None) or pack_plainly
"""Return a command as it goes over the wire: by hiredis, or as it is done here."""


class Reader:
    """Incremental reader of RESP2 replies, and of those RESP3 types in which our questions are answered.

    Fed with any split of the bytes it returns the same replies; on anything else it raises ProtocolError and stays
    unusable. It takes nothing that hiredis refuses: whoever lost the place must not find a vote. Text is decoded as
    UTF-8; what is none of it becomes replacement characters.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        """Take more bytes from the server."""
        self._buffer += data

    def gets(self) -> Any:
        """Return the next reply (a ReplyError for an error), or PENDING."""
        try:
            value, end = self._value(0)
        except _NeedMoreError:
            return PENDING
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"not a reply: {bytes(self._buffer[:40])!r}") from error
        del self._buffer[:end]
        return value

    def _line(self, start: int) -> tuple[bytes, int]:
        end = self._buffer.find(b"\r\n", start)
        if end < 0:
            if len(self._buffer) - start > _LONGEST_LINE:
                raise ValueError("endless line")
            raise _NeedMoreError
        return bytes(self._buffer[start:end]), end + 2

    def _value(self, start: int) -> tuple[Any, int]:
        line, after = self._line(start)
        kind, rest = line[:1], line[1:]
        if kind in _SIZED:
            return self._sized(kind, _number(rest), after)
        if kind in _SCALARS:
            return _SCALARS[kind](rest), after
        raise ValueError("unknown type")

    def _sized(self, kind: bytes, size: int, start: int) -> tuple[Any, int]:
        if size < 0:
            if size == -1 and kind in b"$*":
                return None, start
            raise ValueError("negative size")
        if kind in b"$=":
            return self._string(kind, start, start + size)
        if size > _LONGEST_LIST:
            raise ValueError("endless list")
        values = []
        for _ in range(size * 2 if kind == b"%" else size):
            value, start = self._value(start)
            values.append(value)
        return (dict(zip(values[::2], values[1::2], strict=True)) if kind == b"%" else values), start

    def _string(self, kind: bytes, start: int, end: int) -> tuple[str, int]:
        if len(self._buffer) < end + 2:
            raise _NeedMoreError
        if self._buffer[end : end + 2] != b"\r\n":
            raise ValueError("length does not fit")
        if kind == b"=":  # a verbatim string, which says first what it is of
            start += 4
            if start > end or self._buffer[start - 1 : start] != b":":
                raise ValueError("format is missing")
        return _text(self._buffer[start:end]), end + 2


def _number(digits: bytes) -> int:
    """Return a whole number as servers write it; int() would take blanks, underscores, signs and leading zeros."""
    if not _NUMBER.fullmatch(digits) or not -_NUMBERS <= (number := int(digits)) < _NUMBERS:
        raise ValueError("no number")
    return number


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


def _plain_text(line: bytes) -> str:
    if b"\r" in line or b"\n" in line:
        raise ValueError("line break")
    return _text(line)


def _null(rest: bytes) -> None:
    if rest:
        raise ValueError("no null")


class _NeedMoreError(Exception):
    """The reply is not complete yet."""


_LONGEST_LINE = 65_536
_LONGEST_LIST = 2**20
_NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_NUMBERS = 2**63
_SIZED = (b"*", b"$", b"=", b"%")  # no push (">"): it is no reply, and never asked for
_SCALARS: dict[bytes, Callable[[bytes], Any]] = {
    b":": _number,
    b"+": _plain_text,
    b"-": lambda rest: ReplyError(_plain_text(rest)),
    b"_": _null,
}


def new_reader() -> Any:
    """Return the fastest reader there is: hiredis, else ours."""
    if hiredis is None:
        return Reader()
    return hiredis.Reader(
        protocolError=ProtocolError,
        replyError=ReplyError,
        notEnoughData=PENDING,
        encoding="utf-8",
        errors="replace",
    )
