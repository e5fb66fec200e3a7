"""Records and what the nodes' answers about them mean: pure functions over values.

A key's record goes through these states on each node; the scripts in ``lua`` are the only ones who move it:

    (none) -claim-> running -complete-> done
                    running -abandon-> free (the body raised) | failed (its retries are used up)
                    running -its lease ends, claim-> running, one takeover more
    any -forget-> forgotten, of the next generation

- A claim is granted when a majority of nodes grants it, and when enough nodes that remember everything (N - W + 1 of
  them, W being the number that confirm a completion) say that nothing is recorded.
- One node that has a completion decides that the body does not run; it is acted on once W nodes hold the same record.
- A completion is true whoever holds the key by then, and never replaced by another one of its generation.
- Records live for the retention; a lease is only a deadline inside of one, by each node's own clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from redlock import quorum_size

__all__ = ["COUNTER_STEP", "Quorums", "Record", "State", "about_text"]


class State(str, enum.Enum):
    """Where a key stands on a node."""

    RUNNING = "running"
    FREE = "free"
    FAILED = "failed"
    DONE = "done"
    FORGOTTEN = "forgotten"


COUNTER_STEP = 2**20
"""A fencing counter starts from the node's clock in whole seconds times this. Source: ``lua/claim.lua``."""

_STATES = {state.value: state for state in State}


class Record(NamedTuple):
    """What one node has under a key.

    Args:
        state: Where it stands.
        generation: 0 until somebody forgets the key, then one more each time.
        fence: This node's fencing counter for the key.
        token: Who claimed or completed it.
        takeovers: How often a lease ended before its run did.
        deadline_ms: End of the lease by the node's clock; 0 if nobody runs.
        fingerprint: Of the arguments; empty if they are not compared.
        message_id: Of the message that claimed or completed it.
        tail: The record before (running), the result as JSON or nothing (done), the reason (failed).
    """

    state: State
    generation: int
    fence: int
    token: str
    takeovers: int
    deadline_ms: int
    fingerprint: str
    message_id: str
    tail: str = ""

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read a record as it stands on a node; see ``lua/record.lua`` for the layout; its mark is left out."""
        state, generation, fence, token, takeovers, deadline, fingerprint, message_id, *tail = text.split(" ", 8)
        numbers = generation + fence + takeovers + deadline
        if state not in _STATES or not (numbers.isascii() and numbers.isdigit()):
            raise ValueError(f"no record: {text[:80]!r}")
        return cls(
            _STATES[state],
            int(generation),
            int(fence),
            "" if token == "-" else token.removesuffix("+"),  # noqa: S105 - the sign for none
            int(takeovers),
            int(deadline),
            "" if fingerprint == "-" else fingerprint,
            "" if message_id == "-" else unquote(message_id) if "%" in message_id else message_id,
            tail[0] if tail else "",
        )

    def text(self) -> str:
        """Return the record as it stands on a node."""
        about = about_text(self.fingerprint, self.message_id)
        numbers = f"{self.generation} {self.fence} {self.token or '-'} {self.takeovers} {self.deadline_ms}"
        return f"{self.state.value} {numbers} {about}" + (f" {self.tail}" if self.tail else "")

    @property
    def first_claimed(self) -> int | None:
        """When the key was first claimed, in seconds of the node's clock; None if that cannot be told.

        Source: its fencing counter starts from the clock, and grows by one with each further claim.
        """
        return self.fence // COUNTER_STEP or None

    def completed(self, result: str) -> Record:
        """Return the record of this run's completion, with its result as JSON or nothing."""
        return self._replace(state=State.DONE, deadline_ms=0, tail=result)


def about_text(fingerprint: str, message_id: str) -> str:
    """Return how a record names its arguments and its message: two words without spaces, "-" for an empty one."""
    return f"{fingerprint or '-'} {_word(message_id)}"


def _word(text: str) -> str:
    return "%2D" if text == "-" else quote(text, safe=":@") or "-"


@dataclass(frozen=True, slots=True)
class Quorums:
    """How many of the configured nodes are needed.

    Args:
        nodes: Configured nodes, N.
        write: Nodes that hold the same completion before a message is acknowledged, W; a majority to N.
    """

    nodes: int
    write: int

    @property
    def lease(self) -> int:
        """Nodes that grant a claim: a majority, so that two claims meet."""
        return quorum_size(self.nodes)

    @property
    def remembering(self) -> int:
        """Nodes that a repair has to read: so many that they meet every completion and every claim under way."""
        return self.nodes - min(self.write, self.lease) + 1

    @property
    def answers(self) -> int:
        """Nodes whose answers can be enough to decide about a claim."""
        return max(self.lease, self.absence)

    @property
    def absence(self) -> int:
        """Nodes with records rights that find nothing: so many that they meet every acknowledged completion.

        Source: quorum intersection, R + W > N.
        """
        return self.nodes - self.write + 1
