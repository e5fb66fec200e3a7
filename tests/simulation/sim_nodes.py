"""A virtual node: a Redis server as far as the scripts can tell, with a clock and a memory of its own.

It runs the shipping Lua files (translated) on its keys, so that what the simulation shows is about them. Its wall
clock has a rate and an offset; its identity changes at a restart and at a promotion; its data survive a crash entirely,
in part (writes are lost from the end, as with a cut append-only file or a lagging replica) or not at all.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable
from typing import Any

from tests.simulation.lua_reader import translate
from tests.simulation.lua_runtime import ErrorReply, LuaError, reply_value

__all__ = ["MARKER_KIND", "Substitution", "VirtualNode", "encoded", "substituted"]

EPOCH_MS = 1_700_000_000_000
MARKER_KIND = ":marker"
_JOURNAL = 400
"""Writes that a crash can undo at most."""

Substitution = tuple[str, str]
SUBSTITUTIONS: list[Substitution] = []
"""Changes to the scripts' text, for mutants; see mutants.py."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def substituted(text: str) -> str:
    """Return a script's text as this simulation runs it."""
    for old, new in SUBSTITUTIONS:
        text = text.replace(old, new)
    return text


def _function(text: str) -> Callable[..., Any]:
    if text not in _FUNCTIONS:
        _FUNCTIONS[text] = translate(substituted(text))
    return _FUNCTIONS[text]


def encoded(value: Any) -> bytes:
    """Return a reply as it goes over the wire."""
    kind = type(value)
    if kind is str:
        data = value.encode("utf-8", "surrogateescape")
        return b"$%d\r\n%b\r\n" % (len(data), data)
    if kind is int:
        return b":%d\r\n" % value
    if kind is list:
        return b"*%d\r\n%b" % (len(value), b"".join(map(encoded, value)))
    if kind is ErrorReply:
        return b"-%b\r\n" % value.text.encode()
    return b"$-1\r\n"


def _ignore(*_anything: Any) -> None:
    """Watch nothing."""


class VirtualNode:
    """One server.

    Args:
        name: For traces.
        true_time: Returns the simulation's time in seconds.
        rate: How fast its wall clock runs; 1.0 is true.
        offset: Seconds by which its wall clock is ahead at time 0.
        started: Simulation's time at which the server was started; negative for a long-running one.
    """

    def __init__(
        self,
        name: str,
        true_time: Callable[[], float],
        rate: float = 1.0,
        offset: float = 0.0,
        started: float = -1e5,
    ) -> None:
        self.name = name
        self._true_time = true_time
        self.rate = rate
        self.offset = offset
        self.started = started
        self.data: dict[str, tuple[str, int | None]] = {}
        self.journal: list[tuple[str, tuple[str, int | None] | None]] = []
        self.scripts: dict[str, tuple[str, str]] = {}
        self.is_replica = False
        self.births = 0
        self.identity = ""
        self.run_id = ""
        self.on_call: Callable[..., None] = _ignore
        self._now = 0
        self._names: dict[str, str] = {}
        self.start_anew()

    # -- its clock

    def now_ms(self) -> int:
        """Return its wall clock in milliseconds."""
        return EPOCH_MS + int((self._true_time() * self.rate + self.offset) * 1000)

    def true(self, now_ms: float) -> float:
        """Return the simulation's time at which its clock shows a moment."""
        return ((now_ms - EPOCH_MS) / 1000 - self.offset) / self.rate

    # -- what befalls it

    def start_anew(self) -> None:
        """Be another process: another identity and run id, no scripts known."""
        self.run_id = self._new_id("run")
        self.new_identity()
        self.scripts.clear()
        self.is_replica = False
        self.started = self._true_time() if self.births > 1 else self.started

    def new_identity(self) -> None:
        """Change the replication id, as a restart and a promotion do."""
        self.births += 1
        self.identity = self._new_id("identity")

    def _new_id(self, kind: str) -> str:
        return hashlib.sha1(f"{kind} {self.name} {self.births}".encode(), usedforsecurity=False).hexdigest()

    def flush(self) -> None:
        """Lose all keys, and keep everything else."""
        self.data.clear()
        self.journal.clear()

    def lose_last(self, writes: int) -> int:
        """Undo the last writes; return how many there were to undo."""
        lost = 0
        while lost < writes and self.journal:
            key, before = self.journal.pop()
            if before is None:
                self.data.pop(key, None)
            else:
                self.data[key] = before
            lost += 1
        return lost

    # -- its keys, as the scripts see them

    def _live(self, key: str) -> tuple[str, int | None] | None:
        entry = self.data.get(key)
        if entry is not None and entry[1] is not None and self._now > entry[1]:
            del self.data[key]
            return None
        return entry

    def _write(self, key: str, entry: tuple[str, int | None] | None) -> None:
        if self.is_replica:
            raise LuaError("READONLY You can't write against a read only replica.")
        self.journal.append((key, self.data.get(key)))
        if len(self.journal) > _JOURNAL:
            del self.journal[: _JOURNAL // 2]
        if entry is None:
            del self.data[key]
        else:
            self.data[key] = entry

    def call_get(self, key: str) -> str | bool:
        entry = self._live(key)
        return False if entry is None else entry[0]

    def call_set(self, key: str, value: Any, *options: Any) -> str | bool:
        before = self._live(key)
        expires = None
        rest = list(options)
        while rest:
            option = str(rest.pop(0)).upper()
            if option == "PX":
                life = int(rest.pop(0))
                if life <= 0:
                    raise LuaError("ERR invalid expire time in 'set' command")
                expires = self._now + life
            elif option == "NX":
                if before is not None:
                    return False
            elif option == "KEEPTTL":
                expires = before[1] if before else None
            else:
                raise NotImplementedError(f"SET {option}")
        self._write(key, (value if type(value) is str else f"{value:.17g}", expires))
        return "OK"

    def call_del(self, key: str) -> int:
        if self._live(key) is None:
            return 0
        self._write(key, None)
        return 1

    def call_pttl(self, key: str) -> int:
        entry = self._live(key)
        if entry is None:
            return -2
        return -1 if entry[1] is None else entry[1] - self._now

    def call_pexpire(self, key: str, life: Any) -> int:
        entry = self._live(key)
        if entry is None:
            return 0
        self._write(key, (entry[0], self._now + int(life)))
        return 1

    def call_scan(self, cursor: str, *options: Any) -> list[Any]:
        """Return all keys that match in pages of COUNT, in no useful order, as the server does."""
        named = dict(zip(map(str.upper, options[::2]), options[1::2], strict=True))
        keys = sorted(key for key in list(self.data) if self._live(key) is not None)
        start, count = int(cursor), int(named.get("COUNT", 10))
        page = [key for key in keys[start : start + count] if fnmatch.fnmatchcase(key, named.get("MATCH", "*"))]
        return [str(start + count) if start + count < len(keys) else "0", page]

    def call_time(self) -> list[str]:
        seconds, ms = divmod(self._now, 1000)
        return [str(seconds), str(ms * 1000)]

    def call_info(self, section: str = "") -> str:
        if section == "replication":
            return f"# Replication\r\nmaster_replid:{self.identity}\r\n"
        if section == "server":
            uptime = int((self._true_time() - self.started) * self.rate)
            return f"# Server\r\nrun_id:{self.run_id}\r\nuptime_in_seconds:{uptime}\r\n"
        role = "slave" if self.is_replica else "master"
        return f"run_id:{self.run_id}\r\nrole:{role}\r\nmaxmemory_policy:noeviction\r\n"

    # -- commands

    def execute(self, command: list[str]) -> Any:
        """Carry out one command as a client sent it; return its reply for `encoded`."""
        verb = command[0].upper()
        if verb == "EVALSHA":
            known = self.scripts.get(command[1])
            if known is None:
                return ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
            text, name = known
        elif verb == "EVAL":
            text = command[1]
            sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            name = SCRIPT_NAMES.get(text, "")
            self.scripts[sha] = text, name
        else:
            raise NotImplementedError(verb)
        count = int(command[2])
        return self.run(name, text, command[3 : 3 + count], command[3 + count :])

    def run(self, name: str, text: str, keys: list[str], args: list[str]) -> Any:
        """Run a script; time stands still meanwhile."""
        self._now = self.now_ms()
        before = self._live(keys[0]) if keys else None
        try:
            reply = reply_value(_function(text)(self, keys, args))
        except LuaError as error:
            text = str(error)
            reply = ErrorReply(text if text.split(" ", 1)[0].isupper() else f"ERR {text}")
        self.on_call(self, name, keys, args, reply, before, self.data.get(keys[0]) if keys else None)
        return reply


SCRIPT_NAMES: dict[str, str] = {}
"""What the scripts are called, by their text; for traces and checks."""
