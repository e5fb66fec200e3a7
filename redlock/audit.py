"""The audit: what can be said about each node before something goes wrong. It writes one key and removes it again."""

from __future__ import annotations

import contextlib
import re
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from redis.connection import AbstractConnection

from redlock.facts import Facts, Finding, Severity, judge
from redlock.marker import Marker
from redlock.node import Node, NodeFaultError
from redlock.resp import ReplyError
from redlock.settings import Settings
from redlock.wire import disconnect, talk

__all__ = ["NodeReport", "acl_rule", "audit", "compare", "inspect"]

_ROUND_TRIPS = 5
_BROKER_KEY = "dramatiq:__heartbeats__"
_PROBE = """
local seen = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', 1000)
redis.call('PEXPIRE', KEYS[1], 1000)
local left, now, info = redis.call('PTTL', KEYS[1]), redis.call('TIME'), redis.call('INFO', 'replication')
redis.call('DEL', KEYS[1])
return {1, left}
"""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What was found out about one node.

    Args:
        node: The node's name.
        is_reachable: Whether it answered at all.
        latency: Median round trip in seconds.
        facts: What it says about itself; None if it does not.
        marker: The namespace's marker; None if there is none, or it cannot be read.
        clock_offset: Its clock less ours, in seconds.
        findings: The worst first.
    """

    node: str
    is_reachable: bool = False
    latency: float | None = None
    facts: Facts | None = None
    marker: Marker | None = None
    clock_offset: float | None = None
    findings: tuple[Finding, ...] = field(default=())

    @property
    def severity(self) -> Severity:
        """The worst finding's severity."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    def with_finding(self, finding: Finding) -> NodeReport:
        """Return this report with one finding more."""
        return replace(self, findings=tuple(sorted((*self.findings, finding), key=lambda each: -each.severity)))


def acl_rule(namespace: str, packages: Sequence[str] = ("redlock",)) -> str:
    """Return the least ACL rule a user needs on the nodes, read off the scripts themselves.

    Args:
        namespace: Prefix of all keys.
        packages: Whose scripts are run: add "dramatiq_idem" for the middleware's.
    """
    commands = {"eval", "evalsha"}
    for package in packages:
        for file in (resources.files(package) / "lua").iterdir():
            commands |= {name.lower() for name in re.findall(r"redis\.call\('(\w+)'", file.read_text("utf-8"))}
    return f"~{namespace}:* " + " ".join(f"+{command}" for command in sorted(commands))


def audit(nodes: Sequence[Node], settings: Settings) -> list[NodeReport]:
    """Inspect all nodes, one after the other, and compare them; blocks for some round trips or a time-out per node."""
    return compare([inspect(node, settings) for node in nodes], settings)


def inspect(node: Node, settings: Settings) -> NodeReport:
    """Find out about one node; whatever it refuses to tell is left open."""
    report = NodeReport(node.name)
    try:
        connection = node.connect(settings.node_timeout)
    except NodeFaultError as fault:
        remedy = "check address, credentials and TLS" if fault.permanent else "see whether it runs and can be reached"
        return report.with_finding(Finding("unreachable", Severity.ERROR, fault.cause, remedy))
    try:
        return _inspect(report, connection, settings)
    except (NodeFaultError, OSError) as error:
        return report.with_finding(Finding("unreachable", Severity.ERROR, str(error), "see what listens there"))
    finally:
        disconnect(connection)


def _inspect(report: NodeReport, connection: AbstractConnection, settings: Settings) -> NodeReport:
    def ask(*command: str | int) -> Any:
        return talk(connection, *command)

    latencies, offsets = [], []
    for _ in range(_ROUND_TRIPS):
        started, wall = time.perf_counter(), time.time()
        answer = ask("TIME")
        latencies.append(time.perf_counter() - started)
        if isinstance(answer, list):
            offsets.append(int(answer[0]) + int(answer[1]) / 1e6 - wall - latencies[-1] / 2)
    report = replace(
        report,
        is_reachable=True,
        latency=statistics.median(latencies),
        clock_offset=statistics.median(offsets) if offsets else None,
    )
    info = ask("INFO")
    if isinstance(info, str):
        facts = Facts.parse(info, _config(ask))
        report = replace(report, facts=facts, findings=tuple(judge(facts)))
    else:
        report = report.with_finding(
            Finding("info", Severity.ERROR, f"INFO is refused ({info})", "allow INFO, or switch restart_guard off")
        )
    if ask("EXISTS", _BROKER_KEY) == 1:
        text = "a Dramatiq broker keeps its queues here; its maintenance walks over all keys and stalls"
        report = report.with_finding(Finding("broker", Severity.WARNING, text, "give the nodes servers of their own"))
    return _check_rights(_read_marker(report, ask, settings), ask, settings)


def _config(ask: Callable[..., Any]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name in ("appendfsync", "save"):
        answer = ask("CONFIG", "GET", name)
        values = list(answer.values()) if isinstance(answer, dict) else answer[1:2] if isinstance(answer, list) else []
        if values and isinstance(values[0], str):
            pairs[name] = values[0]
    return pairs


def _read_marker(report: NodeReport, ask: Callable[..., Any], settings: Settings) -> NodeReport:
    text = ask("GET", settings.key("marker"))
    if not isinstance(text, str):
        return report
    with contextlib.suppress(ValueError):
        report = replace(report, marker=Marker.parse(text))
    marker = report.marker
    if marker is not None and marker.nodes not in ("-", settings.nodes_id):
        report = report.with_finding(
            Finding(
                "node_list",
                Severity.ERROR,
                "it was last used with another list of nodes",
                "give all processes the same list; two lists can grant two leases",
            )
        )
    return report


def _check_rights(report: NodeReport, ask: Callable[..., Any], settings: Settings) -> NodeReport:
    probe = settings.key("probe", secrets.token_urlsafe(8))
    answer = ask("EVAL", _PROBE, 1, probe, "audit")
    if not isinstance(answer, ReplyError):
        return report
    remedy = "see the server's log"
    if "NOPERM" in str(answer) or "ACL" in str(answer):
        remedy = f"allow: {acl_rule(settings.namespace)}"
    elif str(answer).startswith("OOM"):
        remedy = "raise maxmemory, or shorten what is kept there: retention, or other people's keys"
    return report.with_finding(Finding("rights", Severity.ERROR, f"our scripts cannot run: {answer}", remedy))


def compare(reports: Sequence[NodeReport], settings: Settings) -> list[NodeReport]:
    """Add what shows only between nodes: one server listed twice, clocks apart, an even number."""
    seen: dict[str, str] = {}
    offsets = [report.clock_offset for report in reports if report.clock_offset is not None]
    middle = statistics.median(offsets) if offsets else 0.0
    result = []
    for report in reports:
        run_id = report.facts.run_id if report.facts else None
        if run_id and run_id in seen:
            text = f"it is the same server as {seen[run_id]}"
            remedy = "list each server once; a majority must be of independent ones"
            report = report.with_finding(Finding("same_server", Severity.ERROR, text, remedy))  # noqa: PLW2901
        elif run_id:
            seen[run_id] = report.node
        apart = abs((report.clock_offset or middle) - middle)
        limit = max(0.0, settings.guard_wait - 1)
        if apart > 0.1 and report.latency is not None and apart > report.latency:
            severity = Severity.ERROR if apart > limit else Severity.WARNING
            text = f"its clock is {apart:.1f} s off the others' (fencing tokens bear {limit:.0f} s across lost data)"
            report = report.with_finding(Finding("clock", severity, text, "synchronise it"))  # noqa: PLW2901
        result.append(report)
    return result
