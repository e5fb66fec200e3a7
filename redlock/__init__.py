"""Quorum locks on N independent Redis or Valkey nodes.

from redlock import Redlock

redlock = Redlock(["redis://a:6379", "redis://b:6379", "redis://c:6379"], ttl=10.0)
with redlock.lock("report:42", wait=5.0) as lease:
    ...
"""

from redlock.admission import admit, asks_for_raise, raise_max_ttl
from redlock.aio import AsyncLease, AsyncRedlock
from redlock.audit import NodeReport, acl_rule
from redlock.clock import clock, new_token, pauses
from redlock.driver import Nodes
from redlock.errors import (
    FencingUnavailableError,
    LeaseLostError,
    LockHeldError,
    QuorumUnreachableError,
    RedlockError,
    SettingsError,
)
from redlock.events import Admitted, Event, LeaseLost, NodeDown, NodeTimed, NodeUp, Observer, log_event, notify
from redlock.facts import RULES as NODE_RULES
from redlock.facts import Facts, Finding, Severity
from redlock.lease import Grant, Term
from redlock.marker import Marker
from redlock.node import nodes_id, parse_nodes
from redlock.plan import Broadcast, Clock, Command, Enough, Plan, Sleep, everybody, nobody, take_back
from redlock.protocol import LockProtocol, trusted
from redlock.quorum import Count, Verdict, Vote, VoteKind, is_decided, quorum_size, tally, validity
from redlock.renewal import Holding
from redlock.renewer import Renewer
from redlock.scripts import ADMISSION, Script
from redlock.scripts import load as load_script
from redlock.settings import Settings
from redlock.sync import Lease, Redlock

__all__ = [
    "ADMISSION",
    "NODE_RULES",
    "Admitted",
    "AsyncLease",
    "AsyncRedlock",
    "Broadcast",
    "Clock",
    "Command",
    "Count",
    "Enough",
    "Event",
    "Facts",
    "FencingUnavailableError",
    "Finding",
    "Grant",
    "Holding",
    "Lease",
    "LeaseLost",
    "LeaseLostError",
    "LockHeldError",
    "LockProtocol",
    "Marker",
    "NodeDown",
    "NodeReport",
    "NodeTimed",
    "NodeUp",
    "Nodes",
    "Observer",
    "Plan",
    "QuorumUnreachableError",
    "Redlock",
    "RedlockError",
    "Renewer",
    "Script",
    "Settings",
    "SettingsError",
    "Severity",
    "Sleep",
    "Term",
    "Verdict",
    "Vote",
    "VoteKind",
    "acl_rule",
    "admit",
    "asks_for_raise",
    "clock",
    "everybody",
    "is_decided",
    "load_script",
    "log_event",
    "new_token",
    "nobody",
    "nodes_id",
    "notify",
    "parse_nodes",
    "pauses",
    "quorum_size",
    "raise_max_ttl",
    "take_back",
    "tally",
    "trusted",
    "validity",
]
