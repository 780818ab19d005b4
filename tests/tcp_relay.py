"""TCP relays that can be taken away: what is behind them is unreachable then."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """From a port of this machine to another, while it is open."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Whoever is connected is cut off."""
        if self._listener is not None:
            # A close alone would not wake who waits in accept.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        while self._sockets:
            _end(self._sockets.pop())

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=_pipe, args=ends, daemon=True).start()


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    _end(source)
    _end(target)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def relays(first_port: int, first_target: int, count: int) -> Iterator[list[Relay]]:
    """Open ones, on ports in a row."""
    made = [Relay(first_port + number, first_target + number) for number in range(count)]
    try:
        for each in made:
            each.open()
        yield made
    finally:
        for each in made:
            each.close()
