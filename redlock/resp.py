"""Packing commands and reading replies: the part of the protocol that the fan-out needs without a blocking socket.

Connecting, TLS and authentication are redis-py's; once a connection stands, one thread serves many of them at once,
which no blocking reader can do. hiredis reads the replies where it is installed, else `Reader`, with the same results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

try:  # here, not on the threads that connect: of an import that fails, another thread sees half a module
    from hiredis import Reader as HiredisReader
except ImportError:
    HiredisReader: Any = None  # type: ignore[no-redef]

__all__ = ["PENDING", "ProtocolError", "Reader", "ReplyError", "new_reader", "pack"]


class ProtocolError(Exception):
    """The bytes are not a reply; whoever sent them is no Redis server, or we lost our place."""


class ReplyError(Exception):
    """The server answered with an error."""


PENDING = object()
"""What a reader returns while the next reply is not complete."""


def pack(parts: Iterable[str | int]) -> bytes:
    """Return a command as it goes over the wire."""
    texts = [*map(str, parts)]
    packed = "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])
    if not packed.isascii():  # a length is one of bytes
        packed = "".join([f"${len(text.encode())}\r\n{text}\r\n" for text in texts])
    return f"*{len(texts)}\r\n{packed}".encode()


class Reader:
    """Incremental reader of RESP2 replies and of the RESP3 types that scripts can return.

    Fed with any split of the bytes it returns the same replies; on anything else it raises ProtocolError and stays
    unusable. Text is decoded as UTF-8; what is none of it becomes replacement characters.
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
        except (ValueError, RecursionError) as error:
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
        if kind == b"-":
            return ReplyError(_text(rest)), after
        if kind in _SCALARS:
            return _SCALARS[kind](rest), after
        raise ValueError("unknown type")

    def _sized(self, kind: bytes, size: int, start: int) -> tuple[Any, int]:
        if size < 0:
            return None, start
        if kind in b"$=!":
            end = start + size
            if len(self._buffer) < end + 2:
                raise _NeedMoreError
            if self._buffer[end : end + 2] != b"\r\n":
                raise ValueError("length does not fit")
            text = _text(self._buffer[start:end])
            return (ReplyError(text) if kind == b"!" else text), end + 2
        values = []
        for _ in range(size * 2 if kind == b"%" else size):
            value, start = self._value(start)
            values.append(value)
        return values, start


def _number(digits: bytes) -> int:
    """Return a whole number as servers write it; int() would take blanks, underscores and leading zeros."""
    if not _NUMBER.fullmatch(digits):
        raise ValueError("no number")
    return int(digits)


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


class _NeedMoreError(Exception):
    """The reply is not complete yet."""


_LONGEST_LINE = 65_536
_NUMBER = re.compile(rb"[+-]?(0|[1-9][0-9]*)")
_SIZED = (b"*", b"~", b"%", b"$", b"=", b"!")  # no push (">"): it is no reply, and never asked for
_SCALARS: dict[bytes, Callable[[bytes], Any]] = {
    b":": _number,
    b"(": _number,
    b",": float,
    b"+": _text,
    b"#": lambda rest: rest == b"t",
    b"_": lambda _rest: None,
}


def new_reader() -> Any:
    """Return the fastest reader there is: hiredis, else ours."""
    if HiredisReader is None:
        return Reader()
    return HiredisReader(
        protocolError=ProtocolError,
        replyError=ReplyError,
        notEnoughData=PENDING,
        encoding="utf-8",
        errors="replace",
    )
