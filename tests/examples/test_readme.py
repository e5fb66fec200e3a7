"""The README: its Python blocks run, its tables name every option with its default, its diagrams name real events."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import dramatiq_idem
from dramatiq_idem import Idempotency, RedlockStore, events
from dramatiq_idem.policies import ACTOR_OPTIONS, MESSAGE_OPTIONS, Policy
from redlock import Redlock
from redlock.local import LocalNodes

pytestmark = pytest.mark.timeout(60)

ROOT = Path(dramatiq_idem.__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DIAGRAMS = re.findall(r"```mermaid\n(.*?)```", README, re.DOTALL)

# What a reader has already: other names of the README's blocks are made in them, and nothing else is.
PRELUDE = """
import sqlite3, sys, time
from types import SimpleNamespace

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq_idem import Idempotency, current_run

nodes = sys.argv[1:4]
broker, other_broker = StubBroker(), StubBroker()
dramatiq.set_broker(broker)
pages, written = [1, 2], []
gateway = SimpleNamespace(charge=lambda amount, idempotency_key: written.append((amount, idempotency_key)))
write = lambda page, fence: written.append((page, fence))
cursor = sqlite3.connect(":memory:", check_same_thread=False)
cursor.execute("CREATE TABLE stock (item TEXT, count INTEGER, fence INTEGER)")
counted = len
apply = mail = write_report = written.append
cache = SimpleNamespace(refresh=written.append)
"""


@pytest.fixture
def urls(trio: LocalNodes) -> list[str]:
    """Three nodes that vote in both namespaces of the README."""
    for namespace in ("idem", "redlock"):
        redlock = Redlock(trio.urls, namespace=namespace)
        redlock.bootstrap()
        redlock.close()
    return trio.urls


def program(index: int, urls: list[str]) -> str:
    """Return a block as a program: on these nodes, with what a reader has already, and worked on to its end."""
    block = BLOCKS[index]
    for name, url in zip("abc", urls, strict=True):
        block = block.replace(f"redis://{name}:6379", url)
    block = block.replace("redis://broker:6379", urls[0])
    prelude = PRELUDE
    if "@dramatiq.actor" in block and "Idempotency(nodes=" not in block:
        prelude += "Idempotency(nodes).install(broker)\n"
    if "async def main" in block:
        block += "\nimport asyncio\nasyncio.run(main())\n"
    return f"{prelude}\n{block}\nprint('ran', len(written))\n"


def run(source: str, urls: list[str]) -> str:
    process = subprocess.run(
        [sys.executable, "-c", source, *urls],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert process.returncode == 0, process.stderr + source
    return process.stdout


@pytest.mark.parametrize("index", range(len(BLOCKS)), ids=lambda i: BLOCKS[i].split("\n", 1)[0][:40])
def test_block_runs(index, urls):
    """As it stands there, but for the addresses."""
    assert "ran" in run(program(index, urls), urls)


WORK = """
worker = dramatiq.Worker(broker, worker_threads=1)
worker.start()
{send}
broker.join("default", fail_fast=True)
worker.stop()
print("written", written or cursor.execute("SELECT count, fence > 0 FROM stock").fetchall())
"""


@pytest.mark.parametrize(
    ("function", "send", "written"),
    [
        ("def charge(", "charge.send('p1', 5)", "[(5, 'payment:p1')]"),
        (
            "def recount(",
            "cursor.execute(\"INSERT INTO stock VALUES ('bolt', 1, 0)\"); recount.send('bolt')",
            "[(4, 1)]",
        ),
        ("def handle(", "handle.send({'id': 'e'}, 1); handle.send({'id': 'e'}, 2)", "[{'id': 'e'}]"),
        ("def report(", "", "[{slot}]"),
        ("def refresh_cache(", "refresh_cache.send('x'); refresh_cache.send('x')", "['ada', 'x', 'x']"),
    ],
    ids=["gateway", "fenced", "webhook", "periodic", "cheap"],
)
def test_recipe_does_what_it_says(function, send, written, urls):
    """A worker runs its actor."""
    index = next(i for i, block in enumerate(BLOCKS) if function in block and "RedisBroker" not in block)
    said = run(program(index, urls) + WORK.format(send=send), urls)
    if "{slot}" in written:
        assert re.search(r"written \[\d{6}\]", said)
    else:
        assert f"written {written}" in said


def rows(heading: str) -> dict[str, list[str]]:
    """Return a table's rows by their first cell, which names something in backticks."""
    table = README.split(heading, 1)[1].split("\n\n", 2)[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in cells}


def plain(cell: str) -> str:
    return cell.split(";", maxsplit=1)[0].replace(",", "").strip('`"')


def test_every_option_stands_in_the_table():
    """With where it may stand, its unit and its default, as the code has them."""
    table = rows("timedelta works too, except on messages.")
    names = {"idempotent", *(name.removeprefix("idempotency_") for name in ACTOR_OPTIONS)}
    assert set(table) == names
    policy = Policy()
    defaults = {field.name.removesuffix("_ms"): getattr(policy, field.name) for field in fields(Policy)}
    for name, (where, unit, default) in table.items():
        assert plain(default) == str(defaults[name]), name
        assert unit
        full = name if name == "idempotent" else f"idempotency_{name}"
        assert ("message" in where) == (full in MESSAGE_OPTIONS), name
        assert "actor" in where


def test_every_option_of_the_middleware_stands_in_its_table():
    """With its default, as the signatures have them."""
    table = rows("Of the middleware alone, in seconds and bytes:")
    given = {**inspect.signature(RedlockStore).parameters, **inspect.signature(Idempotency).parameters}
    del given["options"]
    assert set(table) == set(given)
    for name, (unit, default) in table.items():
        expected = given[name].default
        assert unit
        if name != "nodes":
            said = plain(default.split(":")[0])
            assert said == (expected.__name__ if callable(expected) else str(expected)), name


def test_diagrams_name_real_events():
    """What is in quotes is an event, and every event about a message that changes its course is in some diagram."""
    named = {name for diagram in DIAGRAMS for name in re.findall(r'"(\w+)"', diagram)}
    assert named <= set(events.__all__)
    rare = {"MessageEvent", "NodeRepaired", "RecordsForgotten", "Forgotten"}
    assert set(events.__all__) - named == rare


def test_diagrams_name_real_commands():
    """What is sent to the nodes is a script of that name."""
    scripts = {path.stem for path in (ROOT / "dramatiq_idem" / "lua").glob("*.lua")}
    sent = [text for diagram in DIAGRAMS for text in re.findall(r"->>N: (\w+)", diagram)]
    assert len(sent) > 20
    assert set(sent) <= scripts
