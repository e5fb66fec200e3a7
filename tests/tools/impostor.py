"""A TCP server that is no Redis: it sends a greeting or answers every chunk alike, or streams without an end."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterable, Iterator


class Impostor:
    """Listens on a free loopback port; answers every chunk that arrives with the next of its chunks.

    Args:
        answers: What to send for each chunk received, the last one again and again; None closes the connection.
        endless: What to send without an end as soon as something was received.
    """

    def __init__(self, *answers: bytes | None, endless: bytes = b"") -> None:
        self._answers = answers
        self._endless = endless
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Where a client meets it."""
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop listening and cut all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            answers: Iterator[bytes | None] = itertools.chain(self._answers, itertools.repeat(self._last))
            for answer in self._received(client, answers):
                if answer is None:
                    return
                client.sendall(answer)
                while self._endless:
                    client.sendall(self._endless)

    @property
    def _last(self) -> bytes | None:
        return self._answers[-1] if self._answers else b""

    @staticmethod
    def _received(client: socket.socket, answers: Iterable[bytes | None]) -> Iterator[bytes | None]:
        for answer in answers:
            if not client.recv(65_536):
                return
            yield answer
