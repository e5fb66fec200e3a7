"""LocalNodes starts, harms and removes real servers, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from redlock import local
from redlock.errors import RedlockError, SettingsError
from redlock.local import LocalNodes


def client(node, **options):
    return redis.Redis(port=node.port, decode_responses=True, socket_timeout=5.0, **options)


def is_served(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def wait_until(condition):
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nodes_are_independent_primaries_on_loopback(each_server):
    with LocalNodes(3, binary=each_server) as nodes:
        assert nodes.urls == [f"redis://127.0.0.1:{node.port}" for node in nodes]
        assert len({node.port for node in nodes}) == len({node.pid for node in nodes}) == len(nodes) == 3
        for node in nodes:
            with client(node) as one:
                assert node.alive
                assert one.info()["role"] == "master"
                assert one.info()["process_id"] == node.pid
                wanted = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction", "bind": "127.0.0.1"}
                assert one.config_get(*wanted) == wanted
        with client(nodes[0]) as one, client(nodes[1]) as other:
            one.set("key", "value")
            assert other.get("key") is None


def test_directives_are_written_as_in_the_configuration_file(local_nodes):
    config = {"maxmemory": "64mb", "hz": 50, "save": "3600 1", "requirepass": '"a b"'}
    (node,) = local_nodes(1, config=config)
    with client(node, password="a b") as one:
        assert one.config_get("maxmemory", "hz", "save") == {"maxmemory": "67108864", "hz": "50", "save": "3600 1"}


def test_killed_node_answers_nobody_and_spares_the_others(nodes3):
    nodes3[1].kill()
    nodes3[1].kill()
    assert [node.alive for node in nodes3] == [True, False, True]
    assert [is_served(node.port) for node in nodes3] == [True, False, True]


def test_stopped_node_shuts_down_even_if_paused(nodes3):
    nodes3[0].stop()
    nodes3[1].pause()
    nodes3[1].stop()
    assert [node.alive for node in nodes3] == [False, False, True]
    assert "ready to exit" in (nodes3[1].directory / "server.log").read_text()


def test_paused_node_accepts_and_does_not_answer_until_resumed(local_nodes):
    (node,) = local_nodes(1)
    with client(node) as one:
        one.set("key", "value")
        node.pause()
        node.pause()
        assert node.alive
        with socket.create_connection(("127.0.0.1", node.port), timeout=0.2) as connection:
            connection.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(1)
        node.resume()
        node.resume()
        assert one.get("key") == "value"


def test_dead_node_cannot_be_paused(local_nodes):
    (node,) = local_nodes(1)
    node.kill()
    node.resume()
    with pytest.raises(RedlockError, match="not running"):
        node.pause()


@pytest.mark.parametrize("end", ["stop", "kill", "pause"])
@pytest.mark.parametrize(
    ("persistence", "wipe", "left"),
    [("always", False, "value"), ("everysec", False, "value"), ("none", False, None), ("always", True, None)],
    ids=["always", "everysec", "none", "always-wiped"],
)
def test_restart_keeps_the_address_and_what_was_persisted(each_server, persistence, wipe, left, end):
    with LocalNodes(1, persistence=persistence, binary=each_server) as (node,):
        with client(node) as one:
            one.set("key", "value")
        before = (node.url, node.pid)
        getattr(node, end)()
        node.restart(wipe=wipe)
        assert (node.url, node.pid != before[1], node.alive) == (before[0], True, True)
        with client(node) as one:
            assert one.get("key") == left


@pytest.mark.parametrize("harm", ["none", "kill", "pause"])
def test_close_ends_every_process_and_removes_every_file(each_server, harm):
    nodes = LocalNodes(2, persistence="everysec", binary=each_server)
    nodes.start()
    nodes.start()
    ports, root = [node.port for node in nodes], nodes[0].directory.parent
    if harm != "none":
        getattr(nodes[0], harm)()
    nodes.close()
    nodes.close()
    assert (len(nodes), nodes.urls, root.exists()) == (0, [], False)
    assert not any(is_served(port) for port in ports)


def test_closed_group_starts_again_empty(default_server):
    nodes = LocalNodes(1, persistence="always", binary=default_server)
    for _ in range(2):
        with nodes, client(nodes[0]) as one:
            assert one.dbsize() == 0
            one.set("key", "value")


def test_close_survives_the_loss_of_its_watchdog(default_server):
    with LocalNodes(1, binary=default_server) as nodes:
        root = nodes[0].directory.parent
        nodes._watchdog.kill()
        nodes._watchdog.wait(5.0)
        nodes[0].restart()
    assert not root.exists()


def test_servers_and_files_die_with_a_parent_that_gets_sigkill(each_server, pytestconfig):
    script = (
        "import sys, time; from redlock.local import LocalNodes;"
        "nodes = LocalNodes(3, binary=sys.argv[1]); nodes.start();"
        "nodes[0].restart(); nodes[1].pause();"
        "print(nodes[0].directory.parent, *(node.port for node in nodes), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, each_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pytestconfig.rootpath) as parent:
        root, *ports = parent.stdout.readline().split()
        assert all(is_served(int(port)) for port in ports)
        parent.kill()
    wait_until(lambda: not any(is_served(int(port)) for port in ports))
    wait_until(lambda: not Path(root).exists())


def test_signals_for_our_process_group_do_not_reach_the_servers(nodes3):
    groups = {os.getpgid(node.pid) for node in nodes3}
    assert os.getpgid(0) not in groups


def test_start_takes_another_port_when_the_first_is_taken(default_server, monkeypatch):
    with LocalNodes(1, binary=default_server) as nodes, LocalNodes(1, binary=default_server) as more:
        taken, free = nodes[0].port, more[0].port
        more.close()
        ports = iter([taken, taken, free])
        monkeypatch.setattr(local, "_free_port", lambda: next(ports))
        more.start()
        assert (more[0].port, nodes[0].alive, more[0].alive) == (free, True, True)


def test_start_gives_up_after_five_taken_ports_and_leaves_nothing(default_server, monkeypatch):
    with LocalNodes(1, binary=default_server) as nodes:
        monkeypatch.setattr(local, "_free_port", lambda: nodes[0].port)
        more = LocalNodes(1, binary=default_server)
        with pytest.raises(RedlockError, match="Address already in use"):
            more.start()
        assert (len(more), more.urls) == (0, [])


def test_start_shows_the_log_of_a_server_that_refuses_its_configuration(default_server):
    nodes = LocalNodes(2, binary=default_server, config={"no-such-directive": 1})
    with pytest.raises(RedlockError, match="no-such-directive"):
        nodes.start()
    assert len(nodes) == 0


@pytest.mark.parametrize(
    "arguments",
    [{"count": 0}, {"count": -1}, {"persistence": "sometimes"}, {"binary": "no-such-server"}],
    ids=["zero", "negative", "persistence", "binary"],
)
def test_impossible_settings_are_refused_before_anything_starts(arguments):
    with pytest.raises(SettingsError):
        LocalNodes(**arguments)


def test_missing_servers_are_named(monkeypatch):
    monkeypatch.setattr(local, "available_servers", list)
    with pytest.raises(SettingsError, match="redis-server"):
        LocalNodes()
