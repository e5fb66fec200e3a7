"""Reading records and beginning them anew: what people and the command do, and a run that lost its lease."""

from __future__ import annotations

from dramatiq_idem.errors import ForgetError
from dramatiq_idem.judgement import agreed
from dramatiq_idem.record import Quorums, Record, State
from redlock import ADMISSION, Broadcast, Command, Plan, Settings, Vote, VoteKind, load_script

__all__ = ["LOOK", "Lookup"]

LOOK = load_script("dramatiq_idem", "look", head=ADMISSION, grants=(int, str, int, int, str, str))
FORGET = load_script("dramatiq_idem", "record", "forget", head=ADMISSION)


class Lookup:
    """Plans that read and forget.

    Args:
        settings: Of the namespace.
        quorums: How many nodes are needed.
    """

    def __init__(self, settings: Settings, quorums: Quorums) -> None:
        self._settings = settings
        self._quorums = quorums

    def look(self, name: str) -> Plan[list[Vote]]:
        """Read a key's record on all nodes: record or nothing, ms to live, the node's clock in ms, its marker."""
        keys = (self._settings.key("record", name), self._settings.key("marker"))
        return (yield Broadcast.to_all(Command(LOOK, keys, ()), self._quorums.nodes, self._settings.node_timeout))  # type: ignore[no-any-return]

    def completion(self, name: str) -> Plan[Record | None]:
        """Return the completion of a key that W nodes hold, if there is one."""
        votes = yield from self.look(name)
        texts = [str(vote.reply[0]) for vote in votes if vote.kind is VoteKind.GRANTED and vote.reply[0]]
        found = [record for record in map(_record, texts) if record]
        records = [record for record in found if record.state is State.DONE]
        highest = max((record.generation for record in records), default=0)
        return agreed([record for record in records if record.generation == highest], self._quorums)

    def generation(self, name: str) -> Plan[int]:
        """Return the highest generation of a key that a node knows."""
        votes = yield from self.look(name)
        records = [_record(str(vote.reply[0])) for vote in votes if vote.kind is VoteKind.GRANTED and vote.reply[0]]
        return max((record.generation for record in records if record), default=0)

    def forget(self, name: str, retention_ms: int, *, force: bool) -> Plan[int]:
        """Begin a new generation of a key on all nodes; return it.

        Raises:
            ForgetError: A node does not answer, or somebody runs the key and it is not forced. Nodes that were told
                before keep the new generation; forgetting again completes it.
        """
        votes = yield from self.look(name)
        silent = [vote.node for vote in votes if vote.kind is not VoteKind.GRANTED]
        if silent:
            raise ForgetError(f"cannot forget {name!r} everywhere: {', '.join(silent)} did not answer")
        foreign = [vote.node for vote in votes if vote.reply[0] and _record(str(vote.reply[0])) is None]
        if foreign:
            raise ForgetError(f"what stands under {name!r} is no record on {', '.join(foreign)}")
        generations = [Record.parse(str(vote.reply[0])).generation for vote in votes if vote.reply[0]]
        generation = max(generations, default=0) + 1
        args = (generation, retention_ms, "force" if force else "")
        command = Command(FORGET, (self._settings.key("record", name),), args)
        answers = yield Broadcast.to_all(command, self._quorums.nodes, self._settings.node_timeout)
        missing = [
            f"{vote.node} ({vote.cause or vote.reply[0]})" for vote in answers if vote.kind is not VoteKind.GRANTED
        ]
        if missing:
            raise ForgetError(f"{name!r} is not forgotten on {', '.join(missing)}")
        return generation


def _record(text: str) -> Record | None:
    """Return a record; None for a foreign value."""
    try:
        return Record.parse(text)
    except ValueError:
        return None
