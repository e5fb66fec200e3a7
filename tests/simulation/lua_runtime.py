"""What translated Lua needs at run time: the parts of Lua 5.1's library that the scripts use, with its semantics.

Text is `str` (bytes that are no UTF-8 as surrogates), nil is None, a list is a table with positions, a dict one with
names. Numbers are Python's; where Lua's doubles would show (``..`` on large numbers), so do they here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

__all__ = ["LIBRARY", "ErrorReply", "LuaError", "arithmetic", "at", "concat", "first", "put", "reply_value"]


class LuaError(Exception):
    """A script ended with an error; the server answers with its text."""


class ErrorReply:
    """What `redis.error_reply` makes."""

    def __init__(self, text: str) -> None:
        self.text = text


def first(values: Any) -> Any:
    """Cut several return values down to one."""
    return (values[0] if values else None) if type(values) is tuple else values


def spread(values: Any, count: int) -> tuple[Any, ...]:
    """Cut or fill return values for ``count`` names."""
    if type(values) is not tuple:
        values = (values,)
    return values[:count] if len(values) >= count else values + (None,) * (count - len(values))


def number(value: Any) -> Any:
    """Return a value as arithmetic takes it: text that looks like a number is one."""
    kind = type(value)
    if kind is int or kind is float:
        return value
    found = tonumber(value)
    if found is None:
        raise LuaError(f"attempt to perform arithmetic on a {kind.__name__} value")
    return found


arithmetic = number


def tonumber(value: Any, base: Any = None) -> Any:
    """Lua's tonumber."""
    if type(value) is int or type(value) is float:
        return value
    if type(value) is not str:
        return None
    text = value.strip()
    try:
        return int(text, int(base or 10)) if "_" not in text else None
    except ValueError:
        pass
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def tostring(value: Any) -> str:
    """Lua's tostring: 14 digits are all that a number gets."""
    if value is None:
        return "nil"
    if value is True or value is False:
        return "true" if value else "false"
    return value if type(value) is str else f"{value:.14g}"


def concat(left: Any, right: Any) -> str:
    """Lua's ``..``."""
    for value in (left, right):
        if type(value) not in (str, int, float):
            raise LuaError(f"attempt to concatenate a {type(value).__name__} value")
    return tostring(left) + tostring(right)


def at(table: Any, index: Any) -> Any:
    """Index a table; text is indexed by nothing."""
    if type(table) is dict:
        return table.get(index)
    if type(table) is list or type(table) is tuple:
        if type(index) is str:
            return None
        if type(index) is not int:
            index = number(index)
        return table[int(index) - 1] if 0 < index <= len(table) else None
    raise LuaError(f"attempt to index a {type(table).__name__} value")


def protected(call: Callable[..., Any], *arguments: Any) -> Any:
    """redis.pcall: what goes wrong is a table with `err`."""
    try:
        return call(*arguments)
    except LuaError as error:
        return {"err": str(error)}


def caught(function: Callable[..., Any], *arguments: Any) -> Any:
    """Lua's pcall: whether it went well, and what came of it."""
    try:
        values = function(*arguments)
    except LuaError as error:
        return False, str(error)
    return (True, *values) if type(values) is tuple else (True, values)


def put(table: Any, index: Any, value: Any) -> None:
    """Assign to a table's field."""
    if type(table) is dict:
        table[index] = value
    elif type(table) is not list:
        raise LuaError(f"attempt to index a {type(table).__name__} value")
    elif index == len(table) + 1:
        table.append(value)
    else:
        table[index - 1] = value


_CLASSES = {"a": "A-Za-z", "d": "0-9", "x": "0-9A-Fa-f", "w": "0-9A-Za-z", "s": " \\t\\n\\v\\f\\r"}


@functools.lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    """Return a Lua pattern as a regular expression.

    Raises:
        NotImplementedError: It has something that no script used so far.
    """
    out, index = [], 0
    while index < len(pattern):
        char = pattern[index]
        if char == "%":
            index += 1
            name = pattern[index]
            if name.lower() in _CLASSES:
                out.append(f"[{'^' if name.isupper() else ''}{_CLASSES[name.lower()]}]")
            elif name.isalnum():
                raise NotImplementedError(f"pattern class %{name}")
            else:
                out.append(re.escape(name))
        elif char == "[":
            raise NotImplementedError(f"pattern item {char}")
        elif char == "-":
            out.append("*?")
        elif char == "$":
            out.append("\\Z" if index == len(pattern) - 1 else "\\$")
        elif char in "{}|\\":
            out.append(re.escape(char))
        else:
            out.append(char)
        index += 1
    return re.compile("".join(out), re.DOTALL)


def match(text: Any, pattern: str) -> Any:
    """string.match: the captures, or the whole match; several are a tuple."""
    if type(text) is not str:
        if type(text) not in (int, float):
            raise LuaError("bad argument #1 to 'match' (string expected)")
        text = tostring(text)
    found = _regex(pattern).search(text)
    if found is None:
        return None
    groups = found.groups()
    return (groups if len(groups) > 1 else groups[0]) if groups else found.group()


def find(text: str, wanted: str, start: int, plain: bool) -> Any:  # noqa: FBT001 - as Lua has it
    """string.find of plain text: where it begins and ends."""
    if not plain:
        raise NotImplementedError("string.find by a pattern")
    at = text.find(wanted, int(start) - 1)
    return None if at < 0 else (at + 1, at + len(wanted))


@functools.lru_cache(maxsize=256)
def _kinds(form: str) -> str:
    return "".join(kind for kind in re.findall(r"%[-0-9.]*([a-zA-Z%])", form) if kind != "%")


def format_text(form: str, *values: Any) -> str:
    """string.format."""
    kinds = _kinds(form)
    if len(values) < len(kinds):
        raise LuaError("bad argument to 'format' (no value)")
    made = []
    for kind, value in zip(kinds, values, strict=False):
        if kind == "s":
            made.append(tostring(value))
        elif kind == "d":
            made.append(int(number(value)))
        elif kind in "fgx":
            made.append(number(value))
        else:
            raise NotImplementedError(f"format %{kind}")
    return form % tuple(made)


def fail(message: Any = None, level: Any = None) -> None:
    """Lua's error."""
    raise LuaError(tostring(message))


def reply_value(value: Any) -> Any:
    """Return what the server makes of a script's return value: no fractions, and tables end at their first nil."""
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if type(value) is float:
        return int(value)
    if type(value) is list:
        made = []
        for item in value:
            if item is None:
                break
            made.append(reply_value(item))
        return made
    return value


LIBRARY: dict[str, Callable[..., Any]] = {
    "tonumber": tonumber,
    "tostring": tostring,
    "error": fail,
    "pcall": caught,
    "type": lambda value: {str: "string", int: "number", float: "number", bool: "boolean"}.get(
        type(value), "nil" if value is None else "table"
    ),
    "string.match": match,
    "string.find": find,
    "string.sub": lambda text, first, last: text[int(first) - 1 : int(last)],
    "string.format": format_text,
    "string.len": len,
    "math.floor": lambda value: math.floor(number(value)),
    "math.ceil": lambda value: math.ceil(number(value)),
    "math.max": lambda *values: max(map(number, values)),
    "math.min": lambda *values: min(map(number, values)),
    "table.insert": lambda table, value: table.append(value),
    "table.remove": lambda table, index=0: table.pop(int(index) - 1),
    "redis.error_reply": ErrorReply,
}
"""Functions by their name in Lua; `redis.call` is the node's."""
