"""The floor of a group commit: claims and completions sent together by threads, and nothing else that a client does.

One thread at a time holds the connections: it sends what all threads have to send as one pipeline per node, waits for
the replies of all nodes, and hands them out. There are no rules, votes, time-outs, undos, renewals or faults.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from dramatiq_idem.claims import CLAIM, COMPLETE
from redlock import Settings, new_token
from redlock.local import LocalNodes
from redlock.resp import PENDING, new_reader, pack
from tests.benchmarks.servers import LONGEST_WAIT, connected

_ABOUT = "- -"


class _Asked:
    """What one thread asks, and what the nodes say to it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.replies: tuple[Any, ...] | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class GroupFloor:
    """Sends claims and completions to nodes that vote and know the scripts.

    Args:
        nodes: The nodes.
    """

    def __init__(self, nodes: LocalNodes) -> None:
        self._sockets = connected(nodes)
        self._readers = [new_reader() for _ in self._sockets]
        self._mutex = threading.Lock()
        self._inbox: list[_Asked] = []
        self._is_led = False
        self._settings = Settings(namespace="idem")  # the default of RedlockStore
        self._names = itertools.count()

    def job(self) -> None:
        """Claim a key and complete it."""
        key, token = self._settings.key("record", f"bench:floor:{next(self._names)}"), new_token()
        args = (token, 30_000, self._settings.guard, 86_400_000, _ABOUT, 0)
        claim = ("EVALSHA", CLAIM.sha, 2, key, self._settings.key("marker"), *args)
        _, _, generation, fence, *_ = self._granted(claim)
        done = f"done {generation} {fence} {token} 0 0 {_ABOUT}"
        self._granted(("EVALSHA", COMPLETE.sha, 1, key, done, generation, 86_400_000))

    def _granted(self, command: tuple[str | int, ...]) -> list[Any]:
        replies = self._ask(pack(command))
        if any(reply[0] != 1 for reply in replies):
            raise RuntimeError(f"not granted: {replies}")
        return replies[0]  # type: ignore[no-any-return]

    def _ask(self, data: bytes) -> tuple[Any, ...]:
        asked = _Asked(data)
        with self._mutex:
            self._inbox.append(asked)
            leads, self._is_led = not self._is_led, True
        if not leads and not asked.woken.acquire(timeout=LONGEST_WAIT):
            raise RuntimeError("nobody leads any more")
        if asked.replies is None:  # it leads, from the beginning or by now
            self._exchange(asked)
        return asked.replies or ()

    def _exchange(self, leading: _Asked) -> None:
        with self._mutex:
            batch, self._inbox = self._inbox, []
        data = b"".join([asked.data for asked in batch])
        for connection in self._sockets:
            connection.sendall(data)
        columns = [self._read(index, len(batch)) for index in range(len(self._sockets))]
        for asked, replies in zip(batch, zip(*columns, strict=True), strict=True):
            asked.replies = replies
            if asked is not leading:
                asked.woken.release()
        with self._mutex:
            following = self._inbox[0] if self._inbox else None
            self._is_led = following is not None
        if following is not None:
            following.woken.release()

    def _read(self, index: int, count: int) -> list[Any]:
        replies: list[Any] = []
        reader = self._readers[index]
        while len(replies) < count:
            reply = reader.gets()
            if reply is PENDING:
                reader.feed(self._sockets[index].recv(65_536))
            else:
                replies.append(reply)
        return replies

    def close(self) -> None:
        """Close the sockets."""
        for connection in self._sockets:
            connection.close()
