"""Lua scripts become Python with Lua's meaning; what is not known is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.lua_reader import UntranslatableError, translate
from tests.simulation.lua_runtime import ErrorReply, LuaError, reply_value


class Node:
    """Has one key."""

    def call_get(self, key: str) -> str | bool:
        return "v" if key == "there" else False

    def call_fail(self) -> None:
        raise LuaError("ERR no")


def run(text: str, *args: str) -> Any:
    return reply_value(translate(text)(Node(), ["there", "gone"], list(args)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return 0 and 'zero is true'", "zero is true"),
        ("return '' and 'so is the empty text'", "so is the empty text"),
        ("return redis.call('GET', KEYS[2]) or 'nothing'", "nothing"),
        ("return {1, nil, 3}", [1]),
        ("return 7 / 2", 3),
        ("return '20' + 1", 21),
        ("return '2' == 2", None),
        ("return 2 ~= 3", 1),
        ("return 1782579200000001 .. ''", "1.7825792e+15"),
        ("return string.format('%.0f %d %s', 1782579200000001, 7, 'x')", "1782579200000001 7 x"),
        ("return string.match('ab12cd', '%a+(%d+)')", "12"),
        ("return string.match('ab', '%d')", None),
        ("local a, b, c = string.match('x=1', '(%a)=(%d)') return {a, b, c == nil}", ["x", "1", 1]),
        ("local function two() return 1, 2 end local a, b = two() return {b, a, two()}", [2, 1, 1]),
        ("local t = {} for i = 1, 3 do t[#t + 1] = i end return t", [1, 2, 3]),
        ("local n = 0 for _, v in ipairs({4, 5}) do n = n + v end return n", 9),
        ("local n = 0 repeat n = n + 1 until n == 3 return n", 3),
        ("local n = 0 repeat n = n + 1 if n == 2 then break end until false return n", 2),
        ("local n = 0 while n < 4 do n = n + 1 end return n", 4),
        ("local a, b = 1, 2 a, b = b, a return {a, b}", [2, 1]),
        ("local r = {state = 'done'} return r.state == 'done' and r['state'] or 'other'", "done"),
        ("local x = 1 do_ = nil return x", None),
        ("local ok, why = pcall(function() return redis.call('FAIL') end) return {ok and 1 or 0, why}", [0, "ERR no"]),
        ("return redis.pcall('FAIL').err", "ERR no"),
        ("if redis.call('GET', KEYS[1]) == ARGV[1] then return {1} end return {0}", [1]),
    ],
)
def test_a_script_means_what_it_means_in_lua(text: str, expected: Any) -> None:
    if "do_" in text:
        with pytest.raises(UntranslatableError, match="do_"):
            run(text)
        return
    assert run(text, "v") == expected


def test_error_replies_and_errors_are_kept_apart() -> None:
    """One is an answer, the other ends the script."""
    assert isinstance(translate("return redis.error_reply('NO')")(Node(), [], []), ErrorReply)
    with pytest.raises(LuaError, match="arithmetic"):
        run("return nil + 1")


@pytest.mark.parametrize(
    "text",
    [
        "goto away",
        "return os.time()",
        "return redis.log(1, 'x')",
        "return x",
        "return {1, a = 2}",
        "return string.match('x', '[abc]')",
        "local n = 0 local function f() n = n + 1 end return n",
        "return 'a",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    """A guess would prove something about other scripts than those that ship."""
    with pytest.raises((UntranslatableError, NotImplementedError)):
        run(text)
