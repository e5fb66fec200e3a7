"""The subcommand ``doctor``: the audit of the nodes, and whether our scripts can run there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from dramatiq_idem.command.options import Target, on_nodes
from dramatiq_idem.command.outcome import ERRORS, OK, STATUSES, WARNINGS
from dramatiq_idem.command.printing import cell, emit, new_console, new_table, say, span
from dramatiq_idem.command.reading import Reader
from dramatiq_idem.command.rights import NodeRights
from redlock import Facts, Finding, NodeReport, Redlock, SettingsError, Severity, acl_rule

__all__ = ["doctor"]

_PACKAGES = ("redlock", "dramatiq_idem")
_STATUS = {Severity.INFO: OK, Severity.WARNING: WARNINGS, Severity.ERROR: ERRORS}
_STYLES = {Severity.INFO: "dim", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
_SPREAD = 0.001


@dataclass(frozen=True, slots=True)
class _Patient:
    """One node, as it was found."""

    report: NodeReport
    rights: NodeRights


@click.command(epilog=STATUSES)
@click.option("--acl", is_flag=True, help="Only print the least ACL rule that a user of the middleware needs.")
@on_nodes
def doctor(target: Target, *, acl: bool) -> int:
    """Examine the nodes: what may go wrong, how bad it is, and what to do about it.

    Status 0: nothing worse than a remark. 10: warnings. 20: errors; a node that cannot be reached is one, so too few
    of them end with 20 here. A probe key is written and removed again, to see whether scripts can run; records and
    markers are only read.
    """
    if acl:
        rule = acl_rule(target.namespace, _PACKAGES)
        if target.as_json:
            emit({"acl": rule})
        else:
            say([rule])
        return OK
    patients = _examine(target)
    findings = [(each.report.node, finding) for each in patients for finding in each.report.findings]
    findings += [("all", finding) for finding in _together(patients, target)]
    worst = max((finding.severity for _, finding in findings), default=Severity.INFO)
    if target.as_json:
        everything = [_finding_as_dict(node, finding) for node, finding in findings]
        nodes = [_node_as_dict(each, target) for each in patients]
        emit({"namespace": target.namespace, "worst": worst.name.lower(), "nodes": nodes, "findings": everything})
    else:
        _print(patients, findings, target)
    return _STATUS[worst]


def _examine(target: Target) -> list[_Patient]:
    redlock = Redlock(
        target.urls, namespace=target.namespace, node_timeout=target.timeout, tolerate=target.tolerate,
        observer=lambda _event: None,
    )  # fmt: skip
    reports = redlock.audit()
    redlock.close()
    rights: Sequence[NodeRights] = [NodeRights(report.node, cause="not asked") for report in reports]
    with contextlib.suppress(SettingsError), Reader(target) as reader:  # one server listed twice: the audit says so
        rights = reader.rights()
        pages = [reader.page(index, "0", "-", 1) for index in range(len(rights))]
        causes = [right.cause or page.cause for right, page in zip(rights, pages, strict=True)]
        reports = [_with_scripts(*pair, target) for pair in zip(reports, causes, strict=True)]
    is_in_use = any(right.marker for right in rights)
    reports = [
        _with_marker(_with_rule(report, target), right, is_in_use=is_in_use)
        for report, right in zip(reports, rights, strict=True)
    ]
    return [_Patient(report, right) for report, right in zip(reports, rights, strict=True)]


def _with_scripts(report: NodeReport, cause: str | None, target: Target) -> NodeReport:
    """Add that our scripts cannot run, where the audit has no error that says why."""
    if cause is None or report.severity is Severity.ERROR:
        return report
    remedy = f"allow: {acl_rule(target.namespace, _PACKAGES)}" if "NOPERM" in cause else "see the server's log"
    return report.with_finding(Finding("scripts", Severity.ERROR, f"our scripts cannot run: {cause}", remedy))


def _with_rule(report: NodeReport, target: Target) -> NodeReport:
    """Name in the remedy what all of the middleware needs, not only its locks."""
    remedy = f"allow: {acl_rule(target.namespace, _PACKAGES)}"
    findings = [
        replace(each, remedy=remedy) if each.rule == "rights" and each.remedy.startswith("allow: ") else each
        for each in report.findings
    ]
    return replace(report, findings=tuple(findings))


def _with_marker(report: NodeReport, rights: NodeRights, *, is_in_use: bool) -> NodeReport:
    """Add what the node's marker says about what it may do; none at all is no wonder where no node has one."""
    if rights.standing == "new" and is_in_use:
        text = "it has no marker as others have: it is new, or forgot everything, and nobody has met it since"
        remedy = "nothing: the first claim admits it, and workers repair it"
        return report.with_finding(Finding("empty", Severity.WARNING, text, remedy))
    found = {
        "foreign": Finding("marker", Severity.ERROR, "its marker is none of ours", "use a namespace of its own"),
        "restarted": Finding(
            "restarted", Severity.WARNING, "it restarted, and nobody has met it since", "nothing: the first claim does"
        ),
        "leases": Finding(
            "forgetful",
            Severity.WARNING,
            "it forgot its records and may not say that there is none",
            "nothing: workers repair it; or dramatiq-idem repair",
        ),
        "fresh": Finding(
            "fresh", Severity.INFO, "its right to say that there is no record is being given", "nothing: workers do it"
        ),
        "new": Finding("new", Severity.INFO, "the namespace has no marker here", "nothing: the first claim writes it"),
    }.get(rights.standing)
    return report.with_finding(found) if found else report


def _together(patients: Sequence[_Patient], target: Target) -> list[Finding]:
    """Return what is to be said about the nodes as a whole."""
    standings = [each.rights.standing for each in patients]
    able, needed = standings.count("records"), target.quorums.absence
    if able >= needed or set(standings) <= {"new"}:
        return []
    text = f"{able} nodes may say that there is no record, and {needed} are needed: nothing new runs"
    return [Finding("absence", Severity.ERROR, text, "bring nodes back, then see dramatiq-idem repair --help")]


def _durability(facts: Facts | None) -> str:
    if facts is None:
        return ""
    if facts.is_append_only:
        return f"append-only, fsync {facts.fsync or '?'}"
    return "snapshots" if facts.has_snapshots else "none"


def _node_as_dict(patient: _Patient, target: Target) -> dict[str, Any]:
    report, facts = patient.report, patient.report.facts
    return {
        "node": report.node,
        "reachable": report.is_reachable,
        "latency": report.latency,
        "clock_offset": report.clock_offset,
        "product": facts.product if facts else None,
        "version": facts.version if facts else None,
        "role": facts.role if facts else None,
        "eviction": facts.eviction if facts else None,
        "append_only": facts.is_append_only if facts else None,
        "fsync": facts.fsync if facts else None,
        "snapshots": facts.has_snapshots if facts else None,
        "marker": patient.rights.as_dict(target.settings()),
    }


def _finding_as_dict(node: str, finding: Finding) -> dict[str, str]:
    severity = finding.severity.name.lower()
    return {"node": node, "rule": finding.rule, "severity": severity, "text": finding.text, "remedy": finding.remedy}


def _print(patients: Sequence[_Patient], findings: Sequence[tuple[str, Finding]], target: Target) -> None:
    console, settings = new_console(), target.settings()
    table = new_table("node", "reachable", "latency", "server", "role", "eviction", "persistence", "clock")
    markers = new_table("node", "rights", "since", "waits", "max_ttl", "node list")
    for each in patients:
        report, facts, marker = each.report, each.report.facts, each.rights.marker
        offset = report.clock_offset
        clock = "" if offset is None else "as ours" if abs(offset) < _SPREAD else f"{offset:+.3f} s"
        server = f"{facts.product} {facts.version or ''}" if facts else ""
        reached = cell("yes") if report.is_reachable else cell("no", "bold red")
        role, eviction = (facts.role, facts.eviction) if facts else ("", "")
        table.add_row(
            cell(report.node),
            reached,
            *map(cell, (span(report.latency), server, role, eviction, _durability(facts), clock)),
        )
        waits = span(each.rights.wait_ms(settings) / 1000 or None)
        max_ttl = span(marker.granted_ms / 1000) if marker else ""
        since = "" if marker is None else f"{span(each.rights.age)} ago" if marker.since_ms else "ever"
        markers.add_row(
            *map(cell, (report.node, each.rights.standing, since, waits, max_ttl, marker.nodes if marker else ""))
        )
    console.print(table, markers)
    remarks = new_table("node", "severity", "what", "remedy")
    for node, finding in sorted(findings, key=lambda pair: -pair[1].severity):
        severity = cell(finding.severity.name.lower(), _STYLES[finding.severity])
        remarks.add_row(cell(node), severity, cell(finding.text), cell(finding.remedy))
    if findings:
        console.print(remarks)
