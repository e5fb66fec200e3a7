"""Quorum locks on N independent Redis or Valkey nodes.

    from redlock import Redlock

    redlock = Redlock(["redis://a:6379", "redis://b:6379", "redis://c:6379"], ttl=10.0)
    with redlock.lock("report:42", wait=5.0) as lease:
        ...
"""

from redlock.driver import Nodes, clock, new_token, pauses
from redlock.errors import LeaseLostError, LockHeldError, QuorumUnreachableError, RedlockError, SettingsError
from redlock.events import Admitted, Event, LeaseLost, NodeDown, NodeUp, Observer, log_event, notify
from redlock.lease import Term
from redlock.plan import Broadcast, Command, Plan, Sleep
from redlock.quorum import Verdict, Vote, VoteKind
from redlock.renewer import Renewer
from redlock.scripts import Script
from redlock.settings import Settings
from redlock.sync import Lease, Redlock

__all__ = [
    "Admitted",
    "Broadcast",
    "Command",
    "Event",
    "Lease",
    "LeaseLost",
    "LeaseLostError",
    "LockHeldError",
    "NodeDown",
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
    "Sleep",
    "Term",
    "Verdict",
    "Vote",
    "VoteKind",
    "clock",
    "log_event",
    "new_token",
    "notify",
    "pauses",
]
