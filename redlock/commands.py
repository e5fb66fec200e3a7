"""What is sent to a node for a lock: each script with its keys and arguments, in the order that the script names."""

from __future__ import annotations

from redlock.plan import Command
from redlock.scripts import ACQUIRE, COUNTER, EXTEND, FENCE, HEAL, RELEASE, UNDO
from redlock.settings import Settings

__all__ = ["LockCommands"]


class LockCommands:
    """The script calls for the locks of one namespace.

    Args:
        settings: Of the namespace.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard, self._marker = settings.guard, settings.key("marker")

    def acquire(self, resource: str, token: str, ttl_ms: int) -> Command:
        """Return the command that grants a lease, with its undo."""
        args = (token, ttl_ms, self._guard, self._settings.counter_life_ms)
        keys = (self._lock(resource), self._marker, self._fence(resource))
        return Command(ACQUIRE, keys, args, self.undo(resource, token))

    def undo(self, resource: str, token: str) -> Command:
        """Return the command that takes an acquire back, unless an extension counts on it."""
        return Command(UNDO, (self._lock(resource),), (token,), worth=self._settings.max_ttl)

    def extend(self, resource: str, token: str, ttl_ms: int) -> Command:
        """Return the command that lengthens a lease."""
        return Command(EXTEND, (self._lock(resource), self._marker), (token, ttl_ms, self._guard))

    def heal(self, resource: str, token: str, until_ms: int, fence: int) -> Command:
        """Return the command that puts a lease back, until a time of the node's own clock."""
        args = (token, until_ms, fence, self._settings.counter_life_ms)
        return Command(HEAL, (self._lock(resource), self._fence(resource)), args)

    def release(self, resource: str, token: str) -> Command:
        """Return the command that deletes a lease."""
        return Command(RELEASE, (self._lock(resource),), (token,), worth=self._settings.max_ttl)

    def counter(self, resource: str, token: str) -> Command:
        """Return the command that reads the fencing counter."""
        keys = (self._lock(resource), self._marker, self._fence(resource))
        return Command(COUNTER, keys, (token, self._guard, self._settings.counter_life_ms))

    def fence(self, resource: str, token: str, value: int) -> Command:
        """Return the command that raises the fencing counter."""
        args = (token, value, self._settings.counter_life_ms)
        return Command(FENCE, (self._lock(resource), self._fence(resource)), args)

    def _lock(self, resource: str) -> str:
        return self._settings.key("lock", resource)

    def _fence(self, resource: str) -> str:
        return self._settings.key("fence", resource)
