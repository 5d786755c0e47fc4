"""A proxy between clients and a broker that can drop the broker's answers, or end connections."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536


class LossyProxy:
    """Listens on a port of its own; while `drops_answers`, answers are read and discarded."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.drops_answers = False
        self.ends_before: list[int] = []
        """The next connections, one for each number, end before that message of the client."""
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forward_to(self, broker: tuple[str, int]) -> None:
        """Forward to this broker from now on; connections to another one are closed."""
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

    def _start(self, work: Callable[..., None], *arguments: socket.socket | int) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            address = self._broker
            try:
                broker = socket.create_connection(address)
            except OSError:  # no broker is running
                client.close()
                continue
            with self._lock:
                if address != self._broker:
                    _end(client)
                    _end(broker)
                    continue
                self._open += [client, broker]
                end = self.ends_before.pop(0) if self.ends_before else 0
            self._start(self._pump, client, broker, end)
            self._start(self._pump_answers, broker, client)

    def _pump(self, source: socket.socket, target: socket.socket, end: int) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                end -= 1
                if end == 0:
                    break
                target.sendall(chunk)
        _end(source)
        _end(target)

    def _pump_answers(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if not self.drops_answers:
                    target.sendall(chunk)
        # Dropped bytes leave a gap in the stream, so the connection must end with it.
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
