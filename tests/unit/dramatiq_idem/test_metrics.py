"""What each event counts for, and when prometheus_client is imported."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("prometheus_client")

import redlock
from dramatiq_idem import events, metrics
from dramatiq_idem.metrics import METRICS, PrometheusObserver, combine, measure
from redlock import SettingsError

M = "payment:1", "charge", "id-1"
"""Key, actor and message id of an event."""
CLAIMS = "dramatiq_idem_claims_total"
DUPLICATES = "dramatiq_idem_duplicates_total"


@pytest.fixture
def book(monkeypatch):
    """Let this test's observers begin with no number."""
    monkeypatch.setattr(metrics, "_book", None)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)


CASES = [
    (
        events.Claimed(*M, 0, 0.25),
        [
            (CLAIMS, ("charge", "granted"), 1),
            ("dramatiq_idem_claim_seconds", ("charge",), 0.25),
            ("dramatiq_idem_takeovers_total", ("charge",), 0),
        ],
    ),
    (
        events.Claimed(*M, 3, 0.25),  # of three takeovers of the key this is one; the others were counted
        [
            (CLAIMS, ("charge", "granted"), 1),
            ("dramatiq_idem_claim_seconds", ("charge",), 0.25),
            ("dramatiq_idem_takeovers_total", ("charge",), 1),
        ],
    ),
    (events.Completed(*M, 0.5), [("dramatiq_idem_completion_seconds", ("charge",), 0.5)]),
    (
        events.Skipped(*M, "id-0", "completed"),
        [(DUPLICATES, ("charge", "skipped", "completed"), 1), (CLAIMS, ("charge", "completed"), 1)],
    ),
    (
        events.Skipped(*M, "id-0", "busy"),
        [(DUPLICATES, ("charge", "skipped", "busy"), 1), (CLAIMS, ("charge", "busy"), 1)],
    ),
    (
        events.Skipped(*M, "id-0", "replayed already"),
        [(DUPLICATES, ("charge", "skipped", "replayed already"), 1), (CLAIMS, ("charge", "completed"), 1)],
    ),
    (events.Renewed(*M), [("dramatiq_idem_lease_renewals_total", ("charge",), 1)]),
    (redlock.NodeTimed("a:6379/0", 0.002), [("dramatiq_idem_node_seconds", ("a:6379/0",), 0.002)]),
    (
        events.Replayed(*M, "id-0"),
        [(DUPLICATES, ("charge", "replayed", "completed"), 1), (CLAIMS, ("charge", "completed"), 1)],
    ),
    (
        events.Deferred(*M, "busy", 250, "id-0 has it"),
        [("dramatiq_idem_deferrals_total", ("charge", "busy"), 1), (CLAIMS, ("charge", "busy"), 1)],
    ),
    (
        events.Deferred(*M, "unavailable", 5_000, "no quorum"),
        [("dramatiq_idem_deferrals_total", ("charge", "unavailable"), 1), (CLAIMS, ("charge", "unavailable"), 1)],
    ),
    (
        events.DeadLettered(*M, "key reused"),
        [("dramatiq_idem_dead_letters_total", ("charge",), 1), (CLAIMS, ("charge", "refused"), 1)],
    ),
    (
        events.Unprotected(None, "charge", "id-1", "no key"),
        [("dramatiq_idem_unprotected_runs_total", ("charge", "no key"), 1)],
    ),
    (
        events.Unprotected(*M, "unavailable"),
        [
            ("dramatiq_idem_unprotected_runs_total", ("charge", "unavailable"), 1),
            (CLAIMS, ("charge", "unavailable"), 1),
        ],
    ),
    (
        events.Unprotected(*M, "done"),
        [("dramatiq_idem_unprotected_runs_total", ("charge", "done"), 1), (CLAIMS, ("charge", "completed"), 1)],
    ),
    (events.GivenUp(*M, "free"), [("dramatiq_idem_given_up_total", ("charge", "free"), 1)]),
    (events.LeaseLost(*M, "expired"), [("dramatiq_idem_leases_lost_total", ("charge",), 1)]),
    (events.DoubleRun(*M, "id-0"), [("dramatiq_idem_double_runs_total", ("charge",), 1)]),
    (events.Forgotten(*M), [("dramatiq_idem_forgotten_total", ("charge",), 1)]),
    (events.CompletionUnrecorded(*M, 300.0), [("dramatiq_idem_completions_unrecorded_total", ("charge",), 1)]),
    (
        events.NodeRepaired("a:6379/0", 17),
        [
            ("dramatiq_idem_node_repairs_total", ("a:6379/0",), 1),
            ("dramatiq_idem_records_repaired_total", ("a:6379/0",), 17),
        ],
    ),
    (events.RecordsForgotten(("a:6379/0", "b:6379/0")), [("dramatiq_idem_records_forgotten_total", (), 1)]),
    (
        redlock.Admitted("a:6379/0", "restarted", "leases", 30_000),
        [("dramatiq_idem_node_admissions_total", ("a:6379/0", "restarted"), 1)],
    ),
    (
        redlock.NodeDown("a:6379/0", "refused", 0.5),
        [("dramatiq_idem_node_failures_total", ("a:6379/0",), 1), ("dramatiq_idem_node_down", ("a:6379/0",), 1)],
    ),
    (
        redlock.NodeUp("a:6379/0"),
        [("dramatiq_idem_node_recoveries_total", ("a:6379/0",), 1), ("dramatiq_idem_node_down", ("a:6379/0",), 0)],
    ),
    (redlock.LeaseLost("report:42", "expired"), [("redlock_leases_lost_total", (), 1)]),
]


@pytest.mark.parametrize(("event", "expected"), CASES, ids=lambda value: str(value) if hasattr(value, "level") else "")
def test_an_event_counts_for(event, expected):
    assert sorted(measure(event)) == sorted(expected)


def test_every_kind_of_event_counts_for_something():
    """An event that is added later has to be put into the table."""
    kinds = {kind for module in (events, redlock) for _, kind in inspect.getmembers(module, inspect.isclass)}
    concrete = {kind for kind in kinds if issubclass(kind, redlock.Event)} - {redlock.Event, events.MessageEvent}
    assert {type(event) for event, _ in CASES} == concrete


def test_an_unknown_event_counts_for_nothing():
    assert measure(redlock.Event()) == []


def test_measurements_fit_their_metrics():
    used = set()
    for event, _ in CASES:
        for name, labels, _amount in measure(event):
            assert len(labels) == len(METRICS[name].labels)
            used.add(name)
    assert used == set(METRICS)


def test_names_have_the_endings_of_their_kind():
    for name, metric in METRICS.items():
        assert name.endswith("_total") is (metric.kind == "Counter"), name
        assert name.endswith("_seconds") is (metric.kind == "Histogram"), name


def test_outcomes_are_those_that_are_documented():
    documented = set(re.findall(r"\b[a-z]+\b", METRICS[CLAIMS].help.partition("by ")[2])) - {"or"}
    found = {each.labels[1] for event, _ in CASES for each in measure(event) if each.metric == CLAIMS}
    assert found == documented


@pytest.mark.parametrize("event", [event for event, _ in CASES], ids=lambda event: type(event).__name__)
def test_every_event_is_one_line_and_every_field_of_it_is_documented(event, caplog):
    """Whoever reads the log finds the key and the message in each line, and the unit of a number in the docstring."""
    with caplog.at_level(logging.DEBUG, "redlock"):
        redlock.log_event(event)
    (line,) = caplog.messages
    assert len(line.splitlines()) == 1
    assert line.startswith(type(event).__name__ + " ")
    own = set(type(event).__annotations__) - {"level"}
    for name in own:
        (text,) = re.findall(rf"^ +{name}: (.+)", inspect.getdoc(type(event)), re.MULTILINE)
        is_number = isinstance(getattr(event, name), (int, float))
        assert not is_number or re.match(r"Seconds|Milliseconds|How (many|often)", text), f"{name} has no unit: {text}"
    if isinstance(event, events.MessageEvent):
        assert f"key={event.key!r} actor='charge' message_id='id-1'" in line


def test_no_label_has_the_key_or_the_message_id():
    """They are without number, and a key may name a customer."""
    for event, _ in CASES:
        for _name, labels, _amount in measure(event):
            assert not {"payment:1", "id-1", "id-0", "report:42"} & set(labels)


def test_values(book):
    observer = PrometheusObserver()
    for event, _ in CASES:
        observer(event)
    value = observer.registry.get_sample_value
    assert value(CLAIMS, {"actor": "charge", "outcome": "granted"}) == 2
    assert value("dramatiq_idem_claim_seconds_count", {"actor": "charge"}) == 2
    assert value("dramatiq_idem_claim_seconds_sum", {"actor": "charge"}) == 0.5
    assert value("dramatiq_idem_claim_seconds_bucket", {"actor": "charge", "le": "0.25"}) == 2
    assert value("dramatiq_idem_claim_seconds_bucket", {"actor": "charge", "le": "0.1"}) == 0
    assert value("dramatiq_idem_completion_seconds_sum", {"actor": "charge"}) == 0.5
    assert value("dramatiq_idem_takeovers_total", {"actor": "charge"}) == 1
    assert value("dramatiq_idem_records_repaired_total", {"node": "a:6379/0"}) == 17
    assert value("dramatiq_idem_node_down", {"node": "a:6379/0"}) == 0
    assert value("dramatiq_idem_records_forgotten_total") == 1


def test_counters_of_an_actor_begin_at_zero_with_its_first_message(book):
    """A rate over a counter that is born with its first double run would not see that one."""
    observer = PrometheusObserver()
    observer(events.Claimed(*M, 0, 0.01))
    assert observer.registry.get_sample_value("dramatiq_idem_double_runs_total", {"actor": "charge"}) == 0


def test_observers_share_their_numbers(book):
    """Two counters of one name in one file would overwrite each other."""
    first, second = PrometheusObserver(), PrometheusObserver()
    first(events.GivenUp(*M, "free"))
    second(events.GivenUp(*M, "free"))
    assert first.registry is second.registry
    labels = {"actor": "charge", "state": "free"}
    assert first.registry.get_sample_value("dramatiq_idem_given_up_total", labels) == 2


def test_early_events_about_nodes_are_counted_later(book):
    observer = PrometheusObserver()
    observer(redlock.NodeDown("a:6379/0", "refused", 0.5))
    assert metrics._book is None
    observer(events.Claimed(*M, 0, 0.01))
    assert observer.registry.get_sample_value("dramatiq_idem_node_failures_total", {"node": "a:6379/0"}) == 1


def test_combine_tells_all_even_if_one_raises(caplog):
    told = []

    def broken(_event):
        raise RuntimeError("no space left")

    combine(broken, told.append, told.append)(events.Forgotten(*M))
    assert len(told) == 2
    assert "observer failed" in caplog.text


def test_without_prometheus_client_the_observer_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"dramatiq-idem\[prometheus\]"):
        PrometheusObserver()


EARLY = """
import os, sys
import redlock
from dramatiq_idem import Idempotency, events
from dramatiq_idem.metrics import PrometheusObserver
observer = PrometheusObserver()
Idempotency(["redis://127.0.0.1:1"], observer=observer)
observer(redlock.NodeDown("a:6379/0", "refused", 0.5))
assert "prometheus_client" not in sys.modules, "too early"
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]      # what Dramatiq's middleware does
observer(redlock.NodeUp("a:6379/0"))
assert "prometheus_client" in sys.modules
assert any(name.startswith("counter_") for name in os.listdir(sys.argv[1]))
"""

LATE = """
import logging, os, sys
import prometheus_client
from dramatiq_idem import events
from dramatiq_idem.metrics import PrometheusObserver
logging.basicConfig()
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
PrometheusObserver()(events.GivenUp("k", "a", "m", "free"))
"""


def run(script, tmp_path):
    environment = {name: value for name, value in os.environ.items() if "multiproc_dir" not in name.lower()}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, check=True, capture_output=True, text=True
    )


def test_prometheus_client_is_imported_when_its_directory_is_known_and_not_before(tmp_path):
    run(EARLY, tmp_path)


def test_a_process_that_imported_it_too_early_is_told(tmp_path):
    assert "imported before PROMETHEUS_MULTIPROC_DIR was set" in run(LATE, tmp_path).stderr
