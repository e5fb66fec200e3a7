"""One tick of the watch: each node's load and marker, and a bounded sample of the records of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.rights import NodeRights
from dramatiq_idem.command.sampling import Sample, sample_of
from redlock import Command, Script, VoteKind, clock

__all__ = ["Pulse", "Tick", "Ticker"]

_LOAD = Script(
    "load",
    """
local function number(section, pattern)
  return tonumber(string.match(redis.call('INFO', section), pattern) or '0')
end
return {1, number('stats', 'instantaneous_ops_per_sec:(%d+)'), number('commandstats', 'cmdstat_evalsha:calls=(%d+)'),
  number('keyspace', 'db' .. ARGV[1] .. ':keys=(%d+)')}
""",
)
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Pulse:
    """One node in one tick.

    Args:
        rights: Its marker.
        latency: Seconds that one round trip took; None without an answer.
        ops: Commands per second, as the server counts them, ours included.
        scripts: Script calls per second since the last tick; an undisturbed job is two. None in the first tick.
        keys: All keys in its database; None without an answer.
    """

    rights: NodeRights
    latency: float | None = None
    ops: int | None = None
    scripts: float | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """What one look at the nodes found.

    Args:
        pulses: One per node.
        sample: Of the first node that answers; None if none does.
    """

    pulses: tuple[Pulse, ...]
    sample: Sample | None

    def as_dict(self, reader: Reader) -> dict[str, Any]:
        """Return it for JSON."""
        nodes = [
            pulse.rights.as_dict(reader.settings)
            | {"latency": pulse.latency, "ops": pulse.ops, "scripts": pulse.scripts, "keys": pulse.keys}
            for pulse in self.pulses
        ]
        return {"nodes": nodes, "sample": self.sample.as_dict() if self.sample else None}


class Ticker:
    """Takes one look after the other.

    Args:
        reader: The nodes.
        most: Keys that are looked at for one sample, about; the next sample goes on where it ended.
    """

    def __init__(self, reader: Reader, most: int) -> None:
        self._reader = reader
        self._most = most
        self._calls: dict[str, tuple[float, int]] = {}
        self._cursors: dict[str, str] = {}

    def tick(self) -> Tick:
        """Look at the nodes, one after the other, each with a round trip of its own."""
        rights = self._reader.rights()
        pulses = tuple(self._pulse(index, right) for index, right in enumerate(rights))
        best = sorted(range(len(pulses)), key=lambda index: pulses[index].rights.standing != "records")
        index = next((index for index in best if pulses[index].keys is not None), None)
        return Tick(pulses, None if index is None else self._sample(index, pulses[index]))

    def _pulse(self, index: int, rights: NodeRights) -> Pulse:
        if not rights.has_answered:
            return Pulse(rights)
        started = clock()
        vote = self._reader.ask(index, Command(_LOAD, (), (rights.node.rpartition("/")[2],)))
        latency = round(clock() - started, 6)
        if vote.kind is not VoteKind.GRANTED:
            return Pulse(rights)
        ops, calls, keys = (int(value) for value in vote.reply)
        before = self._calls.get(rights.node)
        self._calls[rights.node] = started, calls
        is_later = before is not None and calls >= before[1]  # a restart begins to count anew
        scripts = (calls - before[1]) / max(1e-3, started - before[0]) if before and is_later else None
        return Pulse(rights, latency, ops, scripts, keys)

    def _sample(self, index: int, pulse: Pulse) -> Sample | None:
        node = pulse.rights.node
        first = cursor = self._cursors.get(node, "0")
        texts: dict[str, str] = {}
        looked_at = 0
        while True:
            page = self._reader.page(index, cursor, "*", min(_PAGE, self._most))
            if page.cause is not None:
                self._cursors.pop(node, None)
                return None
            texts |= page.texts
            looked_at += min(_PAGE, self._most)
            cursor = page.cursor
            if cursor == "0" or looked_at >= self._most:
                break
        self._cursors[node] = cursor
        is_whole = first == cursor == "0"
        share = 1.0 if is_whole else min(1.0, looked_at / max(1, pulse.keys or 1, looked_at + 1))
        return sample_of(node, texts.values(), share, pulse.rights.now_ms)
