"""The demo's own command: it ends well with the protection, badly without, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from dramatiq_idem.demo.audit import Evidence, audit
from dramatiq_idem.demo.drill import Drill, Step
from dramatiq_idem.demo.gateway import Gateway
from dramatiq_idem.demo.journal import COMPLETED, RETURNED, STARTED, Journal, JournalReader, kind_of
from dramatiq_idem.demo.traffic import plan_deliveries
from dramatiq_idem.events import Claimed, Deferred, Skipped

TAG = "DRAMATIQ_IDEM_TEST_TAG"
COMMAND = [sys.executable, "-m", "dramatiq_idem", "demo", "--json"]


def start(tmp_path, *options):
    """Start the command with a mark on it and on all that it starts."""
    environment = os.environ | {TAG: str(tmp_path), "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [*COMMAND, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process):
    try:
        output, _ = process.communicate(timeout=110)
    finally:
        process.kill()
    return output


def survivors(tmp_path):
    """Return the command lines of processes that a command left behind; Linux only, empty elsewhere."""
    mark = f"{TAG}={tmp_path}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_bytes())
    return found


def await_nothing_left(tmp_path):
    deadline = time.monotonic() + 10.0
    while survivors(tmp_path) or any(tmp_path.iterdir()):
        assert time.monotonic() < deadline, (survivors(tmp_path), list(tmp_path.iterdir()))
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_is_lost_or_charged_twice_while_workers_and_a_node_die(default_server, tmp_path):
    process = start(tmp_path, "--payments", "800", "--seed", "7")
    output = finish(process)
    assert process.returncode == 0, output
    report = json.loads(output.splitlines()[-1])
    assert report["ok"]
    assert report["distinct"] == report["completed"] == report["charges"] == 800
    assert report["sent"] == 960
    assert report["lost"] == report["charged_twice"] == 0
    assert report["skipped"] + report["busy"] >= 160, "every duplicate met a claim or a completion"
    assert report["workers_killed"] == len(re.findall(r"worker \d gets SIGKILL", output)) == 2
    assert report["nodes_killed"] == len(re.findall(r"node \d gets SIGKILL", output)) == 1
    assert report["cut_off"] > 0, "the kill has to meet running jobs"
    assert report["repeated"] == report["started"] - 800 >= report["requests"] - 800
    await_nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_check_fails_without_the_middleware(default_server, tmp_path):
    process = start(tmp_path, "--payments", "600", "--without", "middleware")
    output = finish(process)
    assert process.returncode == 1, output
    report = json.loads(output.splitlines()[-1])
    assert not report["ok"]
    assert report["finished"]
    assert report["lost"] == 0
    assert report["charged_twice"] >= 120, "each duplicate is charged"
    await_nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_job_killed_after_its_charge_is_charged_again_without_the_gateways_key(default_server, tmp_path):
    process = start(tmp_path, "--payments", "600", "--without", "gateway-key")
    output = finish(process)
    report = json.loads(output.splitlines()[-1])
    assert report["charged_twice"] > 0, "one was between its charge and its completion: that is when it is killed"
    assert report["charged_twice"] <= report["repeated"]
    assert process.returncode == 1


@pytest.mark.timeout(120)
def test_stdout_has_the_json_document_alone(default_server, tmp_path):
    """For a program that reads it; people see on stderr how it goes on."""
    picture = tmp_path / "demo.html"
    command = [*COMMAND, "--payments", "100", "--report", str(picture)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert process.returncode == 0, process
    assert json.loads(process.stdout)["completed"] == 100
    assert "worker 1 gets SIGKILL" in process.stderr
    assert str(picture) in process.stderr
    assert "\x1b" not in process.stderr


@pytest.mark.timeout(60)
def test_a_run_that_is_too_slow_ends_with_status_1(default_server, tmp_path):
    process = start(tmp_path, "--limit", "2")
    output = finish(process)
    assert process.returncode == 1
    report = json.loads(output.splitlines()[-1])
    assert not report["finished"]
    assert report["lost"] > 0
    await_nothing_left(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupted_run_leaves_nothing_behind(default_server, tmp_path, how):
    process = start(tmp_path)
    lines = []
    while "worker 1 gets SIGKILL" not in "".join(lines):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    process.send_signal(how)
    finish(process)
    assert process.returncode == (1 if how is signal.SIGINT else -how)
    await_nothing_left(tmp_path)


def test_traffic_is_the_same_for_the_same_seed():
    one = plan_deliveries(1000, 3)
    assert one == plan_deliveries(1000, 3) != plan_deliveries(1000, 4)
    kinds = Counter(delivery.kind for delivery in one)
    assert kinds == {"first": 1000, "copy": 100, "resent": 100}
    seen = set()
    for delivery in one:
        assert (delivery.event["payment"] in seen) is (delivery.kind != "first")
        seen.add(delivery.event["payment"])


def test_steps_wait_for_their_share_and_their_pause():
    drill = Drill([Step(0.25, 0.0, lambda: "kill"), Step(0.5, 2.0, lambda: "start")])
    assert drill.advance(0.2, 100.0) is None
    assert drill.sendable == 0.75
    assert drill.advance(0.5, 101.0) == "kill"
    assert drill.advance(0.9, 102.0) is None
    assert drill.advance(0.9, 103.0) == "start"
    assert drill.is_over
    assert drill.sendable == 1.0
    assert drill.advance(1.0, 200.0) is None


def test_a_gateway_charges_a_key_once_and_each_request_without(trio):
    gateway = Gateway(trio.urls[0])
    assert gateway.charge("pay_1", "k1") == gateway.charge("pay_1", "k1") != gateway.charge("pay_2", "k2")
    assert gateway.charge("pay_3", None) != gateway.charge("pay_3", None)
    assert gateway.requests() == {"pay_1": 2, "pay_2": 1, "pay_3": 2}
    assert gateway.charges() == {"pay_1": 1, "pay_2": 1, "pay_3": 2}
    gateway.close()


def test_a_reader_takes_whole_lines_only(tmp_path):
    journal = Journal(tmp_path)
    reader = JournalReader(tmp_path)
    journal.write(STARTED, "pay_1")
    os.write(journal._file, b"comple")
    reader.read()
    assert reader.payments(STARTED) == {"pay_1": 1}
    os.write(journal._file, b"ted pay_1\n")
    reader.read()
    assert reader.payments(COMPLETED, os.getpgrp()) == {"pay_1": 1}
    assert reader.count(STARTED) == reader.count(COMPLETED) == 1


def test_events_are_told_apart():
    about = ("job:payment:pay_1", "charge", "id")
    assert kind_of(Claimed(*about, 0, 0.1)) == "claimed"
    assert kind_of(Claimed(*about, 1, 0.1)) == "takeover"
    assert kind_of(Deferred(*about, "busy", 5, "")) == "deferred-busy"
    assert kind_of(Skipped(*about, "id", "completed")) == "skipped"


KNOWN = {
    "seed": 1,
    "without": "",
    "sent": 3,
    "cut_off": 0,
    "workers_killed": 0,
    "nodes_killed": 0,
    "finished": True,
    "seconds": 1.0,
}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, {}),
        ({"completions": Counter(a=1, b=3)}, {"lost": 1}),
        ({"charges": Counter(b=1)}, {"lost": 1, "charges": 1}),
        ({"charges": Counter(a=2, b=1)}, {"charged_twice": 1, "charges": 3}),
        ({"completions": None}, {"deliveries": 3, "repeated": 1}),
    ],
    ids=["good", "recorded on a minority", "not charged", "charged twice", "without the middleware"],
)
def test_an_audit_finds_what_is_wrong(changes, wrong):
    events = {("claimed", "a"): 1, ("takeover", "a"): 1, ("claimed", "b"): 1, ("skipped", "b"): 1}
    events |= {(STARTED, "a"): 2, (STARTED, "b"): 1}
    for kind in (RETURNED, COMPLETED):
        events |= {(kind, "a"): 1, (kind, "b"): 1}
    evidence = {
        "events": events,
        "requests": Counter(a=2, b=1),
        "charges": Counter(a=1, b=1),
        "completions": Counter(a=2, b=3),
        "nodes": 3,
    }
    report = audit(["a", "b"], Evidence(**evidence | changes), **KNOWN)
    assert report.lost == wrong.get("lost", 0)
    assert report.charged_twice == wrong.get("charged_twice", 0)
    assert report.charges == wrong.get("charges", 2)
    assert report.deliveries == wrong.get("deliveries", 4)
    assert report.completed == 2 - report.lost
    assert report.is_good is not bool(report.lost or report.charged_twice)


def test_the_command_says_which_extra_it_needs():
    hide = "import sys; sys.modules['click'] = None; import dramatiq_idem.cli; dramatiq_idem.cli.main()"
    ended = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "dramatiq-idem: click is not installed; try: pip install 'dramatiq-idem[cli]'\n"
