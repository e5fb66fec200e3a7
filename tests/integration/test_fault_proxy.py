"""The fault proxy does what its modes say, and counts it; in front of a server that echoes lines."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.tools import fault_proxy
from tests.tools.fault_proxy import MODES, FaultProxy

SOON = 5.0  # seconds; a reply that should come fails the test after this
NEVER = 0.2  # seconds in which a reply that must not come has not come


class EchoServer(socketserver.ThreadingTCPServer):
    """Answers every line with itself, and remembers what it executed."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.executed: list[bytes] = []


class EchoHandler(socketserver.StreamRequestHandler):
    """One connection of the echo server."""

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.executed.append(line)
                self.wfile.write(line)
        except ConnectionError:
            pass


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    """Run a server that echoes lines."""
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    """Put a proxy in front of the echo server."""
    with FaultProxy(*echo.server_address) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    """Connect through the proxy, and prove that the connection works."""
    with connect(proxy) as connection:
        assert ask(connection, b"hello\n") == b"hello\n"
        yield connection


def connect(proxy: FaultProxy) -> socket.socket:
    """Open a connection to the proxy."""
    return socket.create_connection(("127.0.0.1", proxy.port), SOON)


def ask(connection: socket.socket, line: bytes) -> bytes:
    """Send a line and return what comes back first."""
    connection.sendall(line)
    return connection.recv(1024)


def ask_anew(proxy: FaultProxy) -> bytes:
    """Open a connection of its own for one request; an end without a reply is an error too."""
    with connect(proxy) as connection:
        return ask(connection, b"lost\n") or connection.recv(1)


def hears_nothing(connection: socket.socket) -> bool:
    """Say whether nothing arrives for a while on a connection that stays open."""
    connection.settimeout(NEVER)
    try:
        return connection.recv(1024) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SOON)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


def test_pass_forwards_in_both_directions_and_injects_nothing(proxy: FaultProxy, client: socket.socket) -> None:
    """An undisturbed proxy is invisible, and its counters stay at zero."""
    assert ask(client, b"one\n") == b"one\n"
    assert not any(proxy.observed.values())


def test_url_names_the_proxy_not_the_node(proxy: FaultProxy, echo: EchoServer) -> None:
    """Clients configured with the url talk to the proxy."""
    assert proxy.url == f"redis://127.0.0.1:{proxy.port}"
    assert proxy.port != echo.server_address[1]


def test_refuse_resets_open_connections_and_refuses_new_ones(proxy: FaultProxy, client: socket.socket) -> None:
    """The node looks as if its process were gone, and the port is still ours when it comes back."""
    proxy.set("refuse")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert proxy.observed["refuse"] == 2  # the port, and one open connection
    proxy.set("pass")
    with connect(proxy) as again:
        assert ask(again, b"back\n") == b"back\n"


def test_reset_resets_open_and_new_connections(proxy: FaultProxy, client: socket.socket, echo: EchoServer) -> None:
    """A connection is accepted and reset before anything reaches the node."""
    proxy.set("reset")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionError):
        ask_anew(proxy)
    assert proxy.observed["reset"] == 2
    assert echo.executed == [b"hello\n"]


def test_hang_accepts_and_forwards_nothing(proxy: FaultProxy, client: socket.socket, echo: EchoServer) -> None:
    """Open and new connections stay open, and neither the node nor the client hears anything."""
    proxy.set("hang")
    with connect(proxy) as fresh:
        for connection in (client, fresh):
            connection.sendall(b"lost\n")
            assert hears_nothing(connection)
    assert echo.executed == [b"hello\n"]
    assert proxy.observed["hang"] == 3  # one connection, two requests


def test_hung_connection_stays_mute_while_new_ones_work(proxy: FaultProxy) -> None:
    """What was accepted while hanging never recovers, as behind a partition that dropped its first packets."""
    proxy.set("hang")
    with connect(proxy) as hung:
        wait_for(lambda: proxy.observed["hang"], "the connection to be accepted")
        proxy.set("pass")
        hung.sendall(b"lost\n")
        assert hears_nothing(hung)
    with connect(proxy) as fresh:
        assert ask(fresh, b"works\n") == b"works\n"


def test_drop_requests_keeps_them_from_the_node(proxy: FaultProxy, client: socket.socket, echo: EchoServer) -> None:
    """A swallowed request is not executed, and the connection goes on afterwards."""
    proxy.set("drop_requests")
    client.sendall(b"lost\n")
    assert hears_nothing(client)
    assert proxy.observed["drop_requests"] == 1
    proxy.set("pass")
    assert ask(client, b"next\n") == b"next\n"
    assert echo.executed == [b"hello\n", b"next\n"]


def test_drop_replies_lets_the_node_execute(proxy: FaultProxy, client: socket.socket, echo: EchoServer) -> None:
    """The request is executed although its reply never arrives."""
    proxy.set("drop_replies")
    client.sendall(b"executed\n")
    assert hears_nothing(client)
    assert echo.executed == [b"hello\n", b"executed\n"]
    assert proxy.observed["drop_replies"] == 1


@pytest.mark.parametrize("delays", [(0.15, 0.0), (0.0, 0.15), (0.1, 0.05)], ids=["requests", "replies", "both"])
def test_delay_adds_latency_in_its_direction(
    proxy: FaultProxy, client: socket.socket, delays: tuple[float, float]
) -> None:
    """A round trip takes at least the sum of both delays, and still arrives whole."""
    proxy.set("delay", *delays)
    started = time.monotonic()
    assert ask(client, b"late\n") == b"late\n"
    assert time.monotonic() - started >= 0.15
    assert proxy.observed["delay"] == sum(delay > 0 for delay in delays)


def test_delay_lets_chunks_of_a_pipeline_wait_side_by_side(proxy: FaultProxy, client: socket.socket) -> None:
    """Ten chunks sent one after the other take one delay and not ten, and keep their order."""
    proxy.set("delay", 0.4, 0.0)
    lines = [b"%d\n" % number for number in range(10)]
    started = time.monotonic()
    for number, line in enumerate(lines, 1):
        client.sendall(line)
        wait_for(lambda sent=number: proxy.observed["delay"] == sent, "the chunk to be read on its own")
    received = b""
    while len(received) < sum(map(len, lines)):
        received += client.recv(1024)
    assert received == b"".join(lines)
    assert 0.4 <= time.monotonic() - started < 10 * 0.4


def test_chunks_never_overtake_when_a_delay_ends(proxy: FaultProxy, client: socket.socket) -> None:
    """A request sent after the delay was lifted stays behind the one that still waits."""
    proxy.set("delay", 0.2, 0.0)
    client.sendall(b"first\n")
    wait_for(lambda: proxy.observed["delay"], "the first request to be read")
    proxy.set("pass")
    client.sendall(b"second\n")
    received = b""
    while received.count(b"\n") < 2:
        received += client.recv(1024)
    assert received == b"first\nsecond\n"


def test_inject_answers_in_the_nodes_place(proxy: FaultProxy, client: socket.socket, echo: EchoServer) -> None:
    """The client hears our bytes, and the node is not asked."""
    proxy.set("inject", b"-LOADING\r\n")
    assert ask(client, b"question\n") == b"-LOADING\r\n"
    assert proxy.observed["inject"] == 1
    assert echo.executed == [b"hello\n"]


def test_garbage_changes_every_byte_of_a_reply(proxy: FaultProxy, client: socket.socket) -> None:
    """The reply has its length and none of its bytes."""
    proxy.set("garbage")
    reply = ask(client, b"clear\n")
    assert len(reply) == len(b"clear\n")
    assert all(ours != theirs for ours, theirs in zip(reply, b"clear\n", strict=True))
    assert proxy.observed["garbage"] == 1


@pytest.mark.parametrize("length", [0, 3, 6], ids=["at once", "within a reply", "at the end of a reply"])
def test_cut_closes_after_some_bytes(proxy: FaultProxy, client: socket.socket, length: int) -> None:
    """The client gets the first bytes of its reply and then the end of the connection."""
    proxy.set("cut", length)
    client.sendall(b"severed"[:5] + b"\n")
    received = b""
    while data := client.recv(1024):
        received += data
    assert received == b"sever\n"[:length]
    assert proxy.observed["cut"] == 1


def test_cut_counts_over_several_replies(proxy: FaultProxy, client: socket.socket) -> None:
    """Replies before the limit arrive whole."""
    proxy.set("cut", 7)
    assert ask(client, b"whole\n") == b"whole\n"
    assert ask(client, b"part\n") == b"p"
    assert client.recv(1) == b""


def test_kill_connections_resets_open_ones_only(proxy: FaultProxy, client: socket.socket) -> None:
    """The switch can break what is open while new connections work."""
    proxy.set("pass", kill_connections=True)
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.observed["killed"] == 1
    with connect(proxy) as fresh:
        assert ask(fresh, b"works\n") == b"works\n"


def test_node_that_is_down_resets_the_client() -> None:
    """A proxy without a node behind it looks like a broken node, and comes up with it."""
    with EchoServer() as gone:
        address = gone.server_address
    with FaultProxy(*address) as proxy, pytest.raises(ConnectionError):
        ask_anew(proxy)


def test_end_of_a_client_reaches_the_node_and_back(proxy: FaultProxy, client: socket.socket) -> None:
    """Half-closing the client ends the node's connection, whose end comes back after the last reply."""
    client.sendall(b"last\n")
    client.shutdown(socket.SHUT_WR)
    received = b""
    while data := client.recv(1024):
        received += data
    assert received == b"last\n"


def test_close_frees_thread_port_and_connections(echo: EchoServer) -> None:
    """Nothing is left behind, and closing twice is allowed."""
    proxy = FaultProxy(*echo.server_address)
    with connect(proxy) as client:
        assert ask(client, b"hello\n") == b"hello\n"
        proxy.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    proxy.close()
    assert not [thread for thread in threading.enumerate() if thread.name == f"fault-proxy-{proxy.port}"]
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [("explode", ()), ("pass", (1,)), ("delay", (0.1,)), ("inject", ("text",)), ("cut", (1.5,))],
    ids=["unknown", "too many", "too few", "text for bytes", "fraction of a byte"],
)
def test_wrong_modes_are_refused_and_change_nothing(
    proxy: FaultProxy, client: socket.socket, mode: str, arguments: tuple[object, ...]
) -> None:
    """A mistake in a test is an error where it is made, not a fault that never happens."""
    with pytest.raises(ValueError, match=mode):
        proxy.set(mode, *arguments)
    assert proxy.mode == "pass"
    assert ask(client, b"works\n") == b"works\n"


def test_every_mode_is_in_the_documentation() -> None:
    """The table of modes in the docstring is complete."""
    assert all(f"    {mode}" in fault_proxy.__doc__ for mode in MODES)
