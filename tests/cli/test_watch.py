"""`watch`: numbers that are what they are said to be, and a clean end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from dramatiq_idem.command.counting import COUNTS, total_of
from dramatiq_idem.command.sampling import sample_of
from dramatiq_idem.command.view import Kind
from dramatiq_idem.metrics import METRICS
from dramatiq_idem.record import State
from tests.cli.conftest import FENCE, rec
from tests.tools.peek import ROOT

NOW = 1_900_000_000
COMMAND = [sys.executable, "-u", "-m", "dramatiq_idem", "watch", "--interval", "0.1"]


def test_rates_are_of_first_claims_in_the_last_ten_seconds():
    texts = [rec(State.DONE, fence=(NOW - 2) * FENCE).text()] * 30
    texts += [rec(State.RUNNING, fence=(NOW - 10) * FENCE + 1, deadline_ms=NOW * 1000 + 1).text()] * 20
    texts += [rec(State.DONE, fence=(NOW - 11) * FENCE).text(), rec(State.DONE, fence=NOW * FENCE).text()]
    texts += [rec(State.DONE, fence=0).text(), "hello"]
    whole = sample_of("a", texts, 1.0, NOW * 1000)
    assert (whole.claims, whole.completions) == (5.0, 3.0)
    assert whole.kinds == {Kind.DONE: 33, Kind.RUNNING: 20, Kind.FOREIGN: 1}
    part = sample_of("a", texts, 0.1, NOW * 1000)
    assert (part.claims, part.completions, part.is_whole) == (50.0, 30.0, False)


def test_longest_run_is_exact_only_for_a_first_one():
    first = rec(State.RUNNING, fence=(NOW - 30) * FENCE, deadline_ms=NOW * 1000 + 1)
    again = rec(State.RUNNING, fence=(NOW - 60) * FENCE + 1, deadline_ms=NOW * 1000 + 1, takeovers=1)
    overdue = rec(State.RUNNING, fence=(NOW - 90) * FENCE, deadline_ms=NOW * 1000)
    sample = sample_of("a", [first.text(), overdue.text()], 1.0, NOW * 1000)
    assert (sample.longest, sample.is_exact, sample.taken_over) == (30.0, True, 0)
    sample = sample_of("a", [first.text(), again.text()], 1.0, NOW * 1000)
    assert (sample.longest, sample.is_exact, sample.taken_over) == (60.0, False, 1)
    assert sample_of("a", [], 1.0, NOW * 1000).longest is None


def test_one_look(bench):
    bench.done("a:1")
    bench.claim("a:2")
    bench.put(0, "a:3", rec(State.RUNNING, deadline_ms=bench.now() + 60_000, takeovers=2))
    found = bench.json("watch", "--once")
    assert found["sample"]["states"] | {"done": 1, "running": 2} == found["sample"]["states"]
    assert found["sample"]["share"] == 1.0
    assert found["sample"]["running_after_takeover"] == 1
    for node in found["nodes"]:
        assert node["standing"] == "records"
        assert 0 < node["latency"] < 1
        assert node["ops"] >= 0
        assert node["scripts"] is None
        assert node["keys"] >= 3
    time.sleep(1.1)  # the current second is not counted
    outcome = bench.run("watch", "--once")
    assert outcome.status == 0
    assert "first claims: 0.2/s" in outcome.out
    assert "records of" in outcome.out


def test_a_sample_is_bounded_and_says_so(bench):
    with bench.client(0) as client, client.pipeline() as pipeline:
        for number in range(2000):
            pipeline.set(f"idem:record:a:{number}", rec(State.DONE).text(), px=60_000)
        pipeline.execute()
    found = bench.json("watch", "--once", "--sample", "300")["sample"]
    assert 250 <= found["read"] <= 400
    assert found["share"] == pytest.approx(0.15, abs=0.01)
    assert "~" in bench.run("watch", "--once", "--sample", "300").out


def test_nodes_that_are_down(fragile):
    fragile.nodes[0].kill()
    found = fragile.json("watch", "--once")
    assert [node["answered"] for node in found["nodes"]] == [False, True, True]
    assert found["nodes"][0]["latency"] is None
    assert found["sample"]["node"] == found["nodes"][1]["node"]
    fragile.nodes[1].kill()
    fragile.nodes[2].kill()
    outcome = fragile.run("watch", "--once", "--json", "--timeout", "0.3")
    assert outcome.status == 3
    assert outcome.json["sample"] is None
    assert "no node's records" in fragile.run("watch", "--once", "--timeout", "0.3").out


def test_password_that_is_refused(guarded):
    outcome = guarded.run("watch", "--once", "--json")
    assert [node["answered"] for node in outcome.json["nodes"]] == [True, True, False]
    assert "hunter2" not in outcome.out + outcome.err + guarded.run("watch", "--once").out


@pytest.mark.parametrize("how", [["--json"], []], ids=["json", "lines"])
def test_interrupt_ends_it_cleanly(bench, how):
    """A line per look until Ctrl-C; then status 0, and nothing on stderr."""
    arguments = [*COMMAND, *how, *(word for url in bench.urls for word in ("--node", url))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""
    assert "\x1b" not in "".join(lines) + rest
    if how:
        looks = [json.loads(line) for line in lines]
        assert looks[0]["at"] < looks[1]["at"] < looks[2]["at"]
        assert looks[2]["nodes"][0]["scripts"] > 0
    else:
        assert all("nodes=3/3 rights=records,records,records" in line for line in lines)


def test_screen_is_left_as_it_was(fragile):
    """On a terminal: a screen of its own, which shows a node that dies and comes back, and is gone after Ctrl-C."""
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    arguments = [*COMMAND, *(word for url in fragile.urls for word in ("--node", url))]
    shown = ""
    with subprocess.Popen(arguments, stdout=child, stderr=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        try:
            for step in (lambda: None, fragile.nodes[0].kill, fragile.nodes[0].restart):
                step()
                mark = len(shown)
                wanted = "no: " if not fragile.nodes[0].alive else "yes"
                while wanted not in shown[mark + 1000 if mark else 0 :]:
                    shown += os.read(parent, 65_536).decode(errors="replace")
            process.send_signal(signal.SIGINT)
            while "\x1b[?1049l" not in shown:
                shown += os.read(parent, 65_536).decode(errors="replace")
            assert process.wait(10) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()
            os.close(parent)
            os.close(child)
    assert shown.startswith("\x1b[?1049h")


# -- what workers count


def test_each_count_has_a_metric_that_exists():
    """A metric that is renamed would be 0 for ever."""
    for pattern in COUNTS.values():
        assert re.match(r"\w+", pattern)[0] in METRICS


def test_samples_of_all_actors_are_added_up():
    text = """# TYPE dramatiq_idem_deferrals_total counter
dramatiq_idem_deferrals_total{actor="a",reason="busy"} 2.0
dramatiq_idem_deferrals_total{actor="b} 9",reason="busy"} 3.0
dramatiq_idem_deferrals_total{actor="a",reason="unavailable"} 40.0
dramatiq_idem_deferrals_created{actor="a",reason="busy"} 1.7e+09
dramatiq_idem_takeovers_total{actor="a"} NaN
"""
    assert total_of(text, COUNTS["busy"]) == 5.0
    assert total_of(text, COUNTS["no quorum"]) == 40.0
    assert total_of(text, COUNTS["takeovers"]) == 0.0


@pytest.mark.parametrize("how", [["--json"], []], ids=["json", "text"])
@pytest.mark.parametrize("address", ["http://127.0.0.1:1/", "file:///etc/hostname", "9191", "http://[::1"])
def test_workers_that_cannot_be_asked_are_named(bench, how, address):
    outcome = bench.run("watch", "--once", *how, "--metrics", address)
    assert outcome.status == 0
    assert address in outcome.out
    assert json.loads(outcome.out)["workers"]["unread"][address] if how else "could not be read" in outcome.out
