"""Translates the shipping Lua scripts to Python functions, so that a virtual node runs the very files.

Only the part of Lua 5.1 that such scripts use is known; anything else raises `UntranslatableError` with its line, so
that a new script is either run as it stands or refused, never guessed at. The contract test compares the outcome with a
real server.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.simulation import lua_runtime

__all__ = ["UntranslatableError", "python_source", "translate"]

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*)|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<op>\.\.|==|~=|<=|>=|[-+*/%<>=(){}\[\].,:;#])"
)
_WORDS = {
    "and", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or", "return",
    "then", "true", "while", "repeat", "until", "break",
}  # fmt: skip
_COMPARISONS = {"==": "==", "~=": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">="}


class UntranslatableError(Exception):
    """The script uses what the translation does not know."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class _Value(NamedTuple):
    """An expression in Python, and what is known of its value: "bool", "number", "several" or "any"."""

    code: str
    kind: str = "any"

    @property
    def one(self) -> str:
        """Its first value."""
        return f"first({self.code})" if self.kind == "several" else self.code

    @property
    def number(self) -> str:
        """It as arithmetic takes it."""
        return self.code if self.kind == "number" else f"arithmetic({self.one})"


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise UntranslatableError(f"line {line}: {text[position : position + 20]!r}")
        kind, piece = str(found.lastgroup), found.group()
        if kind == "name" and piece in _WORDS:
            kind = "word"
        if kind != "space":
            yield _Token(kind, piece, line)
        line += piece.count("\n")
        position = found.end()
    yield _Token("end", "", line)


class _Reader:
    """A recursive descent over one script."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._names = itertools.count()
        self._several = {"string.match", "pcall"}
        self.lines: list[str] = []
        self._depth = 1
        self._scopes: list[dict[str, str]] = [{"KEYS": "KEYS", "ARGV": "ARGV"}]
        self._function_starts = [0]
        """Where among the scopes those of the functions begin that are being read."""

    # -- tokens

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, *texts: str) -> bool:
        return self._token.text in texts and self._token.kind in ("op", "word")

    def _take(self, *texts: str) -> bool:
        if self._is(*texts):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._refusal(f"expected {text!r}")

    def _name(self) -> str:
        if self._token.kind != "name":
            raise self._refusal("expected a name")
        return self._next().text

    def _refusal(self, why: str) -> UntranslatableError:
        return UntranslatableError(f"line {self._token.line}: {why} at {self._token.text!r}")

    # -- names: each Lua local gets a Python name of its own

    def _declare(self, name: str) -> str:
        python = f"{name}_{next(self._names)}"
        self._scopes[-1][name] = python
        return python

    def _lookup(self, name: str) -> str | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _emit(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    # -- statements

    def script(self) -> None:
        self._block()
        if self._token.kind != "end":
            raise self._refusal("expected the end")

    def _block(self, *, is_open: bool = False) -> None:
        if not is_open:
            self._scopes.append({})
        before = len(self.lines)
        while self._token.kind != "end" and not self._is("end", "else", "elseif", "until"):
            self._statement()
            self._take(";")
        if len(self.lines) == before:
            self._emit("pass")
        if not is_open:
            self._scopes.pop()

    def _indented(self) -> None:
        self._depth += 1
        self._block()
        self._depth -= 1

    def _statement(self) -> None:
        if self._take("local"):
            self._function() if self._take("function") else self._local()
        elif self._take("if"):
            self._if()
        elif self._take("for"):
            self._for()
        elif self._take("while"):
            self._while()
        elif self._take("repeat"):
            self._repeat()
        elif self._take("break"):
            self._emit("break")
        elif self._take("return"):
            self._return()
        elif self._token.kind == "name":
            self._assignment_or_call()
        else:
            raise self._refusal("unknown statement")

    def _function(self) -> None:
        self._body_of(self._declare(self._name()))

    def _anonymous(self) -> _Value:
        """Put a function expression in front of the statement that it stands in."""
        python = f"function_{next(self._names)}"
        self._body_of(python)
        return _Value(python)

    def _body_of(self, python: str) -> None:
        # Which functions return several values is looked up ahead: their body is not read yet.
        if self._returns_several():
            self._several.add(python)
        self._function_starts.append(len(self._scopes))
        self._scopes.append({})
        self._expect("(")
        parameters = []
        while not self._take(")"):
            parameters.append(self._declare(self._name()))
            self._take(",")
        self._emit(f"def {python}({', '.join(f'{name}=None' for name in parameters)}):")
        self._indented()
        self._expect("end")
        self._scopes.pop()
        self._function_starts.pop()

    def _returns_several(self) -> bool:
        depth = 1
        for index in range(self._at, len(self._tokens)):
            token = self._tokens[index]
            if token.kind != "word":
                continue
            depth += token.text in ("if", "do", "function", "repeat")
            depth -= token.text in ("end", "until")
            if depth == 0:
                return False
            if token.text == "return" and self._has_comma(index + 1):
                return True
        return False

    def _has_comma(self, index: int) -> bool:
        """Whether the expressions of a return are separated by a comma outside of all brackets."""
        depth = 0
        for token in self._tokens[index:]:
            if token.text in ("end", "else", "elseif") and token.kind == "word":
                return False
            depth += token.text in ("(", "{", "[")
            depth -= token.text in (")", "}", "]")
            if token.text == "," and depth == 0:
                return True
        return False

    def _local(self) -> None:
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        values = self._expressions() if self._take("=") else []
        # The new names are not in scope in their own values.
        targets = [self._declare(name) for name in names]
        self._assign(targets, values)

    def _assign(self, targets: list[str], values: list[_Value]) -> None:
        if len(values) == 1 and len(targets) > 1:
            self._emit(f"{', '.join(targets)} = spread({values[0].code}, {len(targets)})")
        elif len(values) in (0, len(targets)):
            given = [value.one for value in values] or ["None"] * len(targets)
            self._emit(f"{', '.join(targets)} = {', '.join(given)}")
        else:
            raise self._refusal("names and values differ in number")

    def _if(self) -> None:
        self._emit(f"if {self._condition()}:")
        self._expect("then")
        self._indented()
        while self._take("elseif"):
            self._emit(f"elif {self._condition()}:")
            self._expect("then")
            self._indented()
        if self._take("else"):
            self._emit("else:")
            self._indented()
        self._expect("end")

    def _for(self) -> None:
        name = self._name()
        if self._take(","):
            item = self._name()
            self._expect("in")
            if self._name() != "ipairs":
                raise self._refusal("only ipairs")
            values = self._expression().one
            self._scopes.append({})
            targets = f"{self._declare(name)}, {self._declare(item)}"
            self._emit(f"for {targets} in enumerate({values}, 1):")
        else:
            self._expect("=")
            bounds = self._expressions()
            self._scopes.append({})
            start, stop, *step = (f"int({bound.number})" for bound in bounds)
            self._emit(f"for {self._declare(name)} in range({', '.join([start, f'{stop} + 1', *step])}):")
        self._expect("do")
        self._indented()
        self._expect("end")
        self._scopes.pop()

    def _while(self) -> None:
        # The condition is evaluated again each time round, so no name may be bound outside of the loop.
        self._emit(f"while {self._condition()}:")
        self._expect("do")
        self._indented()
        self._expect("end")

    def _repeat(self) -> None:
        self._emit("while True:")
        self._depth += 1
        self._scopes.append({})
        self._block(is_open=True)
        self._expect("until")
        self._emit(f"if {self._condition()}: break")  # what the body declares is in scope here
        self._scopes.pop()
        self._depth -= 1

    def _return(self) -> None:
        if self._token.kind == "end" or self._is("end", "else", "elseif", "until", ";"):
            self._emit("return None")
            return
        values = self._expressions()
        if len(values) == 1:
            self._emit(f"return {values[0].code}")
        else:
            self._emit(f"return ({', '.join(value.one for value in values)})")

    def _assignment_or_call(self) -> None:
        name = self._token.text
        target = self._suffixed(assigns=True)
        if self._is("=", ",") and not target.kind.startswith("field:"):
            own = self._scopes[self._function_starts[-1] :]
            if not any(name in scope for scope in own):
                raise self._refusal(f"{name!r} is another function's")
        if self._is(","):
            targets = [target.code]
            while self._take(","):
                targets.append(self._suffixed(assigns=True).code)
            self._expect("=")
            self._assign(targets, self._expressions())
            return
        if not self._take("="):
            self._emit(target.code)
            return
        value = self._expression().one
        if target.kind.startswith("field:"):
            self._emit(f"put({target.kind.removeprefix('field:')}, {value})")
        else:
            self._emit(f"{target.code} = {value}")

    # -- expressions, loosest first

    def _expressions(self) -> list[_Value]:
        values = [self._expression()]
        while self._take(","):
            values.append(self._expression())
        return values

    def _condition(self) -> str:
        return self._truth(self._expression())

    def _truth(self, value: _Value) -> str:
        """Return Python for "is neither nil nor false": 0 and '' are true in Lua."""
        return self._tested(value)[0]

    def _tested(self, value: _Value) -> tuple[str, str]:
        """Return Python for the truth of a value, and for the value itself once that was evaluated."""
        if value.kind == "bool":
            return value.code, "False"
        if value.kind == "number":
            return "True", value.code
        name = f"t_{next(self._names)}"
        return f"(({name} := {value.one}) is not None and {name} is not False)", name

    def _expression(self) -> _Value:
        left = self._and()
        while self._take("or"):
            right = self._and()
            if left.kind == right.kind == "bool":
                left = _Value(f"({left.code} or {right.code})", "bool")
            else:
                truth, value = self._tested(left)
                left = _Value(f"({'True' if left.kind == 'bool' else value} if {truth} else {right.one})")
        return left

    def _and(self) -> _Value:
        left = self._comparison()
        while self._take("and"):
            right = self._comparison()
            if left.kind == right.kind == "bool":
                left = _Value(f"({left.code} and {right.code})", "bool")
            else:
                truth, value = self._tested(left)
                left = _Value(f"({right.one} if {truth} else {value})")
        return left

    def _comparison(self) -> _Value:
        left = self._concatenation()
        while self._is(*_COMPARISONS):
            operator = _COMPARISONS[self._next().text]
            left = _Value(f"({left.one} {operator} {self._concatenation().one})", "bool")
        return left

    def _concatenation(self) -> _Value:
        left = self._sum()
        if self._take(".."):
            return _Value(f"concat({left.one}, {self._concatenation().one})")
        return left

    def _sum(self) -> _Value:
        left = self._product()
        while self._is("+", "-"):
            operator = self._next().text
            left = _Value(f"({left.number} {operator} {self._product().number})", "number")
        return left

    def _product(self) -> _Value:
        left = self._unary()
        while self._is("*", "/", "%"):
            operator = self._next().text
            left = _Value(f"({left.number} {operator} {self._unary().number})", "number")
        return left

    def _unary(self) -> _Value:
        if self._take("not"):
            return _Value(f"(not {self._truth(self._unary())})", "bool")
        if self._take("-"):
            return _Value(f"(-{self._unary().number})", "number")
        if self._take("#"):
            return _Value(f"len({self._unary().one})", "number")
        return self._simple()

    def _simple(self) -> _Value:
        token = self._token
        if token.kind == "number":
            return _Value(self._next().text, "number")
        if token.kind == "string":
            return _Value(repr(re.sub(r"\\(.)", _unescaped, self._next().text[1:-1])))
        if self._take("nil"):
            return _Value("None")
        if self._is("true", "false"):
            return _Value("True" if self._next().text == "true" else "False", "bool")
        if self._is("{"):
            return self._table()
        if self._take("function"):
            return self._anonymous()
        return self._suffixed()

    def _table(self) -> _Value:
        self._expect("{")
        items: list[str] = []
        fields: list[str] = []
        while not self._take("}"):
            if self._token.kind == "name" and self._tokens[self._at + 1].text == "=":
                name = self._name()
                self._expect("=")
                fields.append(f"{name!r}: {self._expression().one}")
            else:
                items.append(self._expression().one)
            self._take(",")
        if items and fields:
            raise self._refusal("a table with names and positions")
        return _Value("{" + ", ".join(fields) + "}" if fields else "[" + ", ".join(items) + "]")

    def _suffixed(self, *, assigns: bool = False) -> _Value:
        if self._take("("):
            inner = self._expression()
            self._expect(")")
            value, path = _Value(f"({inner.one})", inner.kind if inner.kind != "several" else "any"), None
        else:
            name = self._name()
            found = self._lookup(name)
            value, path = _Value(found or name), None if found else name
        while self._is(".", "[", "("):
            if self._take("."):
                field = self._name()
                if path is not None:
                    path = f"{path}.{field}"
                    continue
                value = self._field(value, repr(field))
            elif self._take("["):
                index = self._expression().one
                self._expect("]")
                value = self._field(value, index)
            else:
                value, path = self._call(value, path), None
        if path is not None:
            raise self._refusal(f"unknown global {path!r}")
        if value.kind.startswith("field:") and not (assigns and self._is("=")):
            return _Value(value.code)
        return value

    @staticmethod
    def _field(table: _Value, index: str) -> _Value:
        if table.code in ("KEYS", "ARGV") and index.isdigit():
            return _Value(f"{table.code}[{int(index) - 1}]")
        return _Value(f"at({table.one}, {index})", f"field:{table.one}, {index}")

    def _call(self, value: _Value, path: str | None) -> _Value:
        self._expect("(")
        arguments = []
        while not self._take(")"):
            arguments.append(self._expression().one)
            self._take(",")
        if path in ("redis.call", "redis.pcall"):
            command = f"call_{arguments.pop(0).strip(chr(39)).lower()}"
            if path == "redis.pcall":
                return _Value(f"protected({', '.join([command, *arguments])})")
            return _Value(f"{command}({', '.join(arguments)})")
        if path is not None:
            if path not in lua_runtime.LIBRARY:
                raise self._refusal(f"unknown function {path!r}")
            kind = "several" if path in self._several else "number" if path.startswith("math.") else "any"
            return _Value(f"{path.replace('.', '_')}({', '.join(arguments)})", kind)
        return _Value(f"{value.one}({', '.join(arguments)})", "several" if value.code in self._several else "any")


def _unescaped(found: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}.get(found.group(1), found.group(1))


def python_source(text: str) -> str:
    """Return a Lua script as the source of a Python function ``script(node, KEYS, ARGV)``."""
    reader = _Reader(text)
    reader.script()
    body = "\n".join(reader.lines)
    commands = sorted(set(re.findall(r"\bcall_([a-z]+)\b", body)))
    bound = "".join(f"    call_{command} = node.call_{command}\n" for command in commands)
    return f"def script(node, KEYS, ARGV):\n{bound}{body}\n"


def translate(text: str) -> Callable[[Any, list[str], list[str]], Any]:
    """Return a Lua script as a function of a node (its ``call_get`` and so on), the keys and the arguments."""
    names: dict[str, Any] = {name.replace(".", "_"): made for name, made in lua_runtime.LIBRARY.items()}
    helpers = ("arithmetic", "at", "concat", "first", "protected", "put", "spread")
    names |= {name: getattr(lua_runtime, name) for name in helpers}
    exec(compile(python_source(text), "<lua>", "exec"), names)  # noqa: S102 - our own scripts, translated above
    return names["script"]  # type: ignore[no-any-return]
