"""A proxy between clients and a broker that can swallow the broker's answers."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

PIECE_BYTES = 65_536


class LossyProxy:
    """Listens on a port of its own; while `is_deaf`, answers are read and thrown away."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_deaf = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def lead_to(self, broker: tuple[str, int]) -> None:
        """From now on; connections to another place end, also one that is just being made."""
        with self._lock:
            if broker == self._broker:
                return
            self._broker = broker
            opened = list(self._open)
        for one in opened:
            _end(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            _end(one)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            place = self._broker
            try:
                broker = socket.create_connection(place)
            except OSError:  # there is none at the moment
                client.close()
                continue
            with self._lock:
                if place != self._broker:
                    _end(client)
                    _end(broker)
                    continue
                self._open += [client, broker]
            self._start(self._pump, client, broker)
            self._start(self._pump_answers, broker, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                target.sendall(piece)
        _end(source)
        _end(target)

    def _pump_answers(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if not self.is_deaf:
                    target.sendall(piece)
        # What was swallowed leaves a hole in the stream, so the connection must end with it.
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
