"""Settings of the locks: frozen, validated before any IO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from redlock.errors import SettingsError
from redlock.quorum import ROUNDING

__all__ = ["LONGEST_KEY", "Duration", "Settings", "milliseconds", "seconds"]

Duration: TypeAlias = float | timedelta
"""Seconds as a number, or a timedelta."""

LONGEST_KEY = 1024
"""Bytes of a resource or key; a bound so that a mistake cannot fill the nodes."""


def seconds(name: str, value: Duration, *, least: float = 0.0, most: float = math.inf) -> float:
    """Return a duration in seconds.

    Raises:
        SettingsError: It is no number (bool and text are none), not finite, or outside of [least, most].
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"{name} must be seconds as a number or a timedelta, not {value!r}")
    if not math.isfinite(value) or not least <= value <= most:
        raise SettingsError(f"{name} must be between {least:g} and {most:g} seconds, not {value!r}")
    return float(value)


def milliseconds(name: str, value: Duration, *, most: float, drift: float) -> int:
    """Return a ttl as the whole milliseconds that are sent to the nodes.

    Raises:
        SettingsError: As for `seconds`, or the ttl is so short that the drift allowance leaves no validity.
    """
    ms = int(seconds(name, value, most=most) * 1000)
    if ms / 1000 * (1 - drift) <= ROUNDING:
        raise SettingsError(f"{name} must exceed the allowance for clock drift (2 ms + {drift:.1%}), not be {value!r}")
    return ms


@dataclass(frozen=True, slots=True)
class Settings:
    """What all processes that share locks must agree on.

    Args:
        namespace: Prefix of every key on the nodes; default "redlock".
        ttl: Life of a lease in seconds where none is given; default 10, or max_ttl if that is shorter.
        max_ttl: Longest ttl in seconds that anybody in the namespace uses; default 30. A node that forgot waits this
            long before it votes again.
        node_timeout: Seconds that a node has to answer; default 0.5.
        drift: Allowed difference between clock rates, as a share of ttl; default 0.01, which covers clocks that each
            run within 0.5 % of true time. Steps of a node's clock are not covered.
        restart_guard: Whether a node that forgot has to wait; default True. Without it two holders are possible after
            a restart.
        durable_nodes: Your word that a restart forgets nothing: every write is on disk before it is answered
            (appendfsync always, no-appendfsync-on-rewrite no), no failover, no restored snapshot. Default False.
        counter_life: Seconds for which an unused fencing counter is kept; default one day.
        nodes_id: A hash of the node list, for the audit to compare; set by what knows the list.
    """

    namespace: str = "redlock"
    ttl: float | None = None
    max_ttl: float = 30.0
    node_timeout: float = 0.5
    drift: float = 0.01
    restart_guard: bool = True
    durable_nodes: bool = False
    counter_life: float = 86_400.0
    nodes_id: str = "-"

    def __post_init__(self) -> None:
        name = self.namespace
        if not isinstance(name, str) or not name or not name.isprintable() or ":" in name or " " in name:
            raise SettingsError(f"namespace must be printable, non-empty text without colons and blanks, not {name!r}")
        if isinstance(self.drift, bool) or not isinstance(self.drift, (int, float)) or not 0 <= self.drift < 0.5:
            raise SettingsError(f"drift must be a share from 0 to 0.5, not {self.drift!r}")
        set_field = object.__setattr__
        set_field(self, "max_ttl", seconds("max_ttl", self.max_ttl, least=0.001, most=86_400.0))
        set_field(self, "node_timeout", seconds("node_timeout", self.node_timeout, least=0.001, most=60.0))
        if self.node_timeout > self.max_ttl:
            raise SettingsError(f"node_timeout, {self.node_timeout:g} s, must not exceed max_ttl, {self.max_ttl:g} s")
        set_field(self, "counter_life", seconds("counter_life", self.counter_life, least=self.max_ttl))
        self.ttl_ms("ttl", self.default_ttl)

    def ttl_ms(self, name: str, value: Duration | None = None) -> int:
        """Return a ttl in whole milliseconds; the default one where none is given."""
        return milliseconds(name, self.default_ttl if value is None else value, most=self.max_ttl, drift=self.drift)

    @property
    def default_ttl(self) -> float:
        """Life of a lease in seconds where none is given."""
        return min(10.0, self.max_ttl) if self.ttl is None else self.ttl

    @property
    def max_ttl_ms(self) -> int:
        """The longest ttl in whole milliseconds, rounded up."""
        return math.ceil(self.max_ttl * 1000)

    @property
    def counter_life_ms(self) -> int:
        """How long an unused fencing counter is kept, in milliseconds."""
        return round(self.counter_life * 1000)

    @property
    def guard_wait(self) -> float:
        """Seconds for which a node that forgot does not vote, at the settings' own max_ttl; 0.0 without the guard."""
        return self.max_ttl * (1 + 2 * self.drift) if self.restart_guard else 0.0

    @property
    def guard(self) -> str:
        """How the admission scripts are told the guard's wait: its factor on max_ttl, or "0" for no guard.

        Source: a lease of ttl on a slow clock may outlast one on a fast clock by twice the drift.
        """
        return f"{1 + 2 * self.drift:g}" if self.restart_guard else "0"

    @property
    def pattern(self) -> str:
        """The glob pattern of all keys of the namespace, and of no others."""
        return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in self.namespace) + ":*"

    def key(self, kind: str, name: str = "") -> str:
        """Return a key below the namespace; no two names of a kind, and no two kinds, share one."""
        return f"{self.namespace}:{kind}:{name}" if name else f"{self.namespace}:{kind}"


def check_resource(resource: str) -> str:
    """Return the resource's name unchanged.

    Raises:
        SettingsError: It is not text, empty, longer than 1,024 bytes or not encodable.
    """
    if not isinstance(resource, str) or not resource:
        raise SettingsError(f"a resource must be non-empty text, not {resource!r}")
    try:
        size = len(resource.encode())
    except UnicodeEncodeError:
        raise SettingsError(f"a resource must be encodable as UTF-8, not {resource!r}") from None
    if size > LONGEST_KEY:
        raise SettingsError(f"a resource must have at most {LONGEST_KEY} bytes, not {size}")
    return resource
