"""What a run came to: counted from the workers' journals, and checked against the nodes' records and the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from dramatiq_idem.demo.jobs import KEY, NAMESPACE
from dramatiq_idem.demo.journal import COMPLETED, RETURNED, STARTED
from dramatiq_idem.keys import record_name
from dramatiq_idem.record import Record, State
from redlock import Settings, quorum_size

__all__ = ["Evidence", "Report", "audit", "completions"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found when the queues were empty.

    Args:
        events: How often each (kind, payment) stands in the journals.
        requests: How often the gateway was asked for each payment.
        charges: How often it charged each payment.
        completions: On how many nodes each payment's completion is recorded; None without the middleware.
        nodes: How many nodes there are.
    """

    events: Mapping[tuple[str, str], int]
    requests: Counter[str]
    charges: Counter[str]
    completions: Counter[str] | None
    nodes: int


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a run. Counts are of payments or of what happened to messages, as their names say.

    Args:
        seed: Of the traffic.
        without: What was left out on purpose: "middleware", "gateway-key" or nothing.
        sent: Messages sent.
        distinct: Payments among them.
        deliveries: Messages that a worker took: sent ones, redelivered ones, and those that had been deferred.
        started: Runs of the body.
        completed: Payments that are charged and whose completion a majority of the nodes has recorded.
        skipped: Deliveries not run because the payment was completed.
        busy: Deliveries put back because another one ran the payment.
        unavailable: Deliveries put back because no quorum answered.
        takeovers: Runs that took over the claim of a worker that had died.
        lease_lost: Runs that lost their lease and went on.
        cut_off: Runs under way in a worker when it was killed.
        lost: Payments that are not completed although the queues are empty.
        repeated: Runs of the body beyond one for each completed payment.
        completed_twice: Payments whose completion was recorded for more than one run.
        requests: Requests to the gateway.
        charges: Charges it made.
        charged_twice: Payments charged more than once.
        workers_killed: Worker process groups that got SIGKILL.
        nodes_killed: Nodes that got SIGKILL.
        finished: Whether the queues were empty before the time was up.
        seconds: From the start of the first process to the end of the audit.
    """

    seed: int
    without: str
    sent: int
    distinct: int
    deliveries: int
    started: int
    completed: int
    skipped: int
    busy: int
    unavailable: int
    takeovers: int
    lease_lost: int
    cut_off: int
    lost: int
    repeated: int
    completed_twice: int
    requests: int
    charges: int
    charged_twice: int
    workers_killed: int
    nodes_killed: int
    finished: bool
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, nothing charged twice, and all was done in time."""
        return self.finished and not self.lost and not self.charged_twice

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with the verdict."""
        return asdict(self) | {"ok": self.is_good}


def audit(payments: Sequence[str], evidence: Evidence, **known: Any) -> Report:
    """Draw the conclusions.

    Args:
        payments: All that were sent, each once.
        evidence: What was found.
        known: The fields of the report that the run itself knows.
    """
    kinds: Counter[str] = Counter()
    for (kind, _), times in evidence.events.items():
        kinds[kind] += times
    starts = _payments(evidence, STARTED)
    ends = _payments(evidence, RETURNED if evidence.completions is None else COMPLETED)
    completed = {payment for payment in payments if _is_completed(payment, evidence, ends)}
    claimed = kinds["claimed"] + kinds["takeover"]
    deferred = kinds["deferred-busy"] + kinds["deferred-unavailable"]
    return Report(
        distinct=len(payments),
        deliveries=kinds[STARTED] if evidence.completions is None else claimed + kinds["skipped"] + deferred,
        started=kinds[STARTED],
        completed=len(completed),
        skipped=kinds["skipped"],
        busy=kinds["deferred-busy"],
        unavailable=kinds["deferred-unavailable"],
        takeovers=kinds["takeover"],
        lease_lost=kinds["leaselost"],
        lost=len(payments) - len(completed),
        repeated=sum(starts[payment] - 1 for payment in completed),
        completed_twice=sum(times > 1 for times in ends.values()),
        requests=evidence.requests.total(),
        charges=evidence.charges.total(),
        charged_twice=sum(times > 1 for times in evidence.charges.values()),
        **known,
    )


def _is_completed(payment: str, evidence: Evidence, ends: Counter[str]) -> bool:
    if evidence.completions is None:
        is_recorded = ends[payment] > 0
    else:
        is_recorded = evidence.completions[payment] >= quorum_size(evidence.nodes)
    return is_recorded and evidence.charges[payment] > 0


def _payments(evidence: Evidence, kind: str) -> Counter[str]:
    return Counter({payment: times for (what, payment), times in evidence.events.items() if what == kind})


def completions(nodes: Sequence[str], payments: Sequence[str]) -> Counter[str]:
    """Ask all nodes which completions they hold; return on how many nodes each payment's is."""
    key_of = _record_key(Settings(namespace=NAMESPACE))
    found: Counter[str] = Counter()
    for url in nodes:
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0) as node:
            values: Any = node.mget([key_of(payment) for payment in payments])
        done = (Record.parse(value).state is State.DONE if value else False for value in values)
        found.update(payment for payment, is_done in zip(payments, done, strict=True) if is_done)
    return found


def _record_key(settings: Settings) -> Callable[[str], str]:
    template = KEY.replace("{event[payment]}", "{}")
    return lambda payment: settings.key("record", record_name("charge", template.format(payment)))
