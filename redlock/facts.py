"""What a server says about itself, and what of it makes it unfit to be a node: pure functions over INFO and CONFIG."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["RULES", "Facts", "Finding", "Severity", "judge", "unfit"]

RULES = ("same_server", "replica", "cluster", "evicting")
"""Names of what can never be safe, and is refused at first use unless it is tolerated by name."""


class Severity(enum.IntEnum):
    """How bad a finding is; the worst one sets an exit status."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a node that somebody should know.

    Args:
        rule: Its name; those in `RULES` keep the node from being used.
        severity: How bad it is.
        text: What was found.
        remedy: What to do about it.
    """

    rule: str
    severity: Severity
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What INFO (and CONFIG, where it is allowed) say of a server; None where they do not."""

    run_id: str | None
    product: str
    version: str | None
    role: str | None
    is_cluster: bool
    maxmemory: int
    eviction: str | None
    is_append_only: bool
    fsync: str | None
    has_snapshots: bool
    uptime: int

    @classmethod
    def parse(cls, info: str, config: Mapping[str, str] | None = None) -> Facts:
        """Read the reply to INFO, and the pairs of CONFIG GET."""
        lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        config = config or {}
        is_valkey = "valkey_version" in lines
        return cls(
            run_id=lines.get("run_id"),
            product="Valkey" if is_valkey else "Redis",
            version=lines.get("valkey_version") or lines.get("redis_version"),
            role=lines.get("role"),
            is_cluster=lines.get("cluster_enabled") == "1",
            maxmemory=int(lines.get("maxmemory", "0") or 0),
            eviction=lines.get("maxmemory_policy"),
            is_append_only=lines.get("aof_enabled") == "1",
            fsync=config.get("appendfsync"),
            has_snapshots=bool(config.get("save")),
            uptime=int(lines.get("uptime_in_seconds", "0") or 0),
        )


def judge(facts: Facts) -> list[Finding]:
    """Return what is noteworthy about one server, the worst first."""
    found = []
    if facts.role not in (None, "master"):
        found.append(
            Finding(
                "replica", Severity.ERROR, "it is a replica", "list independent primaries; replication is no quorum"
            )
        )
    if facts.is_cluster:
        found.append(
            Finding(
                "cluster", Severity.ERROR, "it runs in cluster mode", "list standalone servers, one per failure domain"
            )
        )
    if facts.eviction not in (None, "noeviction"):
        is_limited = facts.maxmemory > 0
        found.append(
            Finding(
                "evicting" if is_limited else "eviction_policy",
                Severity.ERROR if is_limited else Severity.WARNING,
                f"under memory pressure it evicts keys ({facts.eviction}), leases and records among them",
                "set maxmemory-policy noeviction",
            )
        )
    if facts.is_append_only and facts.fsync not in (None, "always"):
        found.append(
            Finding(
                "fsync",
                Severity.INFO,
                f"a power cut may lose the last writes (appendfsync {facts.fsync})",
                "nothing: the restart guard waits and repairs; appendfsync always loses less",
            )
        )
    if not facts.is_append_only:
        found.append(
            Finding(
                "persistence",
                Severity.INFO,
                "a restart loses what was written" + (" since the last snapshot" if facts.has_snapshots else ""),
                "nothing for locks: the restart guard waits; records want appendonly yes",
            )
        )
    return sorted(found, key=lambda finding: -finding.severity)


def unfit(facts: Facts, tolerated: Collection[str]) -> Finding | None:
    """Return why a server must not be used as a node; None if it may."""
    return next((finding for finding in judge(facts) if finding.rule in RULES and finding.rule not in tolerated), None)
