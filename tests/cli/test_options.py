"""What all subcommands share: which nodes, wrong usage, secrets, and the command as it is installed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from dramatiq_idem.record import State
from tests.cli.conftest import rec
from tests.tools.peek import ROOT

EACH = [["doctor"], ["ls"], ["show", "a:k"], ["forget", "a:k"], ["repair"], ["watch", "--once"]]
COMMAND = [sys.executable, "-m", "dramatiq_idem"]


@pytest.mark.parametrize("command", EACH, ids=lambda command: command[0])
def test_no_nodes_is_wrong_usage(bench, command):
    outcome = bench.run(*command, urls=[])
    assert outcome.status == 2
    assert outcome.err == "Error: which nodes? give each with --node, or all in DRAMATIQ_IDEM_NODES\n"
    assert bench.run(*command, "--json", urls=[]).json["status"] == 2


WRONG = [
    "hunter2@host",
    "http://user:hunter2@host",
    "redis://user:hunter2@host:port",
    "redis://host:port?password=hunter2",
    "redis://:hunter2@",
    "redis://:hunter%32@host:x",
]


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("command", EACH, ids=lambda command: command[0])
def test_addresses_that_cannot_be_read_are_refused_without_their_password(bench, command, url):
    outcome = bench.run(*command, "--json", "--timeout", "0.2", urls=[url])
    assert outcome.status in (2, 3, 20) if url.endswith("@") else outcome.status == 2, outcome
    assert "hunter" not in outcome.out + outcome.err
    assert len(outcome.err.splitlines()) <= 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "a", "redis://:hunter2@b"],
        ["redis://:hunter2@b"],
        ["show", "k", "redis://b?password=hunter2&x=1"],
        ["ls", "--limit", "redis://u:hunter2@b"],
    ],
    ids=str,
)
def test_usage_errors_repeat_no_password(bench, arguments):
    outcome = bench.run(*arguments)
    assert outcome.status == 2
    assert "hunter2" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ls", "--state", "lost"], "'lost' is not one of"),
        (["ls", "--older-than", "soon"], "write 90s, 15m, 2h or 3d"),
        (["ls", "--limit", "-1"], "-1 is not in the range"),
        (["ls", "--timeout", "0"], "0.0 is not in the range"),
        (["ls", "--write-quorum", "1"], "--write-quorum must be from 2 to 3 for 3 nodes, not 1"),
        (["ls", "--write-quorum", "4"], "--write-quorum must be from 2 to 3 for 3 nodes, not 4"),
        (["ls", "--namespace", ""], "namespace must be"),
        (["ls", "--tolerate", "everything"], "'everything' is not one of"),
        (["show"], "Missing argument 'KEY'"),
        (["forget"], "Missing argument 'KEY...'"),
        (["lock"], "No such command 'lock'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_said_in_a_line(bench, arguments, words):
    outcome = bench.run(*arguments)
    assert outcome.status == 2
    assert words in outcome.err.splitlines()[-1]
    assert outcome.out == ""


def test_nodes_from_options_win_and_from_the_environment_have_commas(bench):
    assert len(bench.json("doctor", urls=[f" {url} " for url in bench.urls])["nodes"]) == 3
    given = [word for url in bench.urls for word in ("--node", url)]
    assert len(bench.json("doctor", *given, urls=["redis://nowhere:1"])["nodes"]) == 3


def test_a_node_listed_twice_is_wrong_usage(bench):
    outcome = bench.run("ls", urls=[bench.urls[0], bench.urls[0]])
    assert (outcome.status, "listed twice" in outcome.err) == (2, True)
    aliases = [*bench.urls[:2], bench.urls[0].replace("127.0.0.1", "localhost")]
    for command in (["ls"], ["show", "a"], ["forget", "a"], ["repair"], ["watch", "--once"]):
        outcome = bench.run(*command, urls=aliases)
        assert (outcome.status, "are the same server" in outcome.err) == (2, True), command


@pytest.mark.parametrize("command", [*EACH, []], ids=lambda command: command[0] if command else "group")
def test_help_documents_the_statuses(bench, command):
    outcome = bench.run(*command[:1], "--help")
    assert outcome.status == 0
    assert "Exit status:" in outcome.out
    assert "too few nodes" in " ".join(outcome.out.split())
    if command:
        assert "DRAMATIQ_IDEM_NODES" in outcome.out


def test_unfit_server_is_refused_unless_it_is_tolerated(fragile):
    fragile.done("a:k")
    for index in range(3):
        with fragile.client(index) as client:
            client.config_set("maxmemory", "100mb")
            client.config_set("maxmemory-policy", "allkeys-lru")
    assert fragile.run("ls", "--timeout", "0.5").status == 3
    assert len(fragile.json("ls", "--tolerate", "evicting")["records"]) == 1


def environment(bench, **more):
    return os.environ | {"DRAMATIQ_IDEM_NODES": ",".join(bench.urls)} | more


def test_installed_command_prints_one_document(bench):
    bench.done("a:😀")
    for command, status in (["ls"], 0), (["show", "a:😀"], 0), (["doctor"], 0), (["show", "b"], 1), (["repair"], 0):
        process = subprocess.run(
            [*COMMAND, *command, "--json"],
            env=environment(bench, PYTHONIOENCODING="ascii"),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=15,
            check=False,
        )
        assert process.returncode == status, process
        assert json.loads(process.stdout)
        assert process.stderr == ""


def test_a_terminal_without_the_letters_gets_them_escaped(bench):
    bench.done("a:😀")
    process = subprocess.run(
        [*COMMAND, "ls"],
        env=environment(bench, PYTHONIOENCODING="ascii"),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=15,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "a:\\U0001f600" in process.stdout


def test_colours_are_for_terminals(bench):
    bench.done("a:k")
    parent, child = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    try:
        process = subprocess.run(
            [*COMMAND, "ls"], env=environment(bench, **settings), stdout=child, cwd=ROOT, timeout=15, check=False
        )
        assert process.returncode == 0
        shown = os.read(parent, 65_536).decode()
    finally:
        os.close(parent)
        os.close(child)
    assert "\x1b[32mdone" in shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")  # noqa: PTH110 - a device
@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["doctor"], ["watch", "--once"]], ids=" ".join)
def test_a_full_disk_is_said_in_a_line(bench, command):
    bench.done("a:k")
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        process = subprocess.run(
            [*COMMAND, *command], env=environment(bench), stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            timeout=15, check=False,
        )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr.startswith("Error: the output cannot be written")
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command", [["ls", "--limit", "0"], ["watch", "--interval", "0.1"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize("how", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_leaves_early_ends_it_quietly(bench, command, how):
    """As in a pipe into head; more than a pipe holds, or for ever."""
    with bench.client(0) as client, client.pipeline() as pipeline:
        for number in range(1000):
            pipeline.set(f"idem:record:a:{number}", rec(State.DONE).text(), px=60_000)
        pipeline.execute()
    with subprocess.Popen(
        [*COMMAND, *command, *how], env=environment(bench), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        try:
            assert process.stdout.readline()
            process.stdout.close()
            errors = process.stderr.read()
            assert process.wait(10) in (0, 1)
        finally:
            process.kill()
    assert errors == b""
