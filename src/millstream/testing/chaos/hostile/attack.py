"""What an attack is, whom it attacks, and its tools: frames, and connections of its own kind.

An attack runs in a process of its own (`attacker.py`). It first builds all it will send; then it
sends. What it notes by name is counted; what should not have been possible is a violation.
"""

import json
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Self

from millstream.runtime.randomness import SeededRandomness
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.headers import decode_response_header, encode_request_header

CLIENT_ID: Final = "hostile"
ANSWER_MAX_S: Final = 30.0
"""For an answer that an attack needs; a broker that is slower than this is counted as silent."""
SHOWN_MAX: Final = 5
CHUNK_BYTES: Final = 1 << 16
"""Sent or received at once."""
POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Target:
    """A cluster as an attacker knows it, and how long and how much it attacks."""

    brokers: dict[str, str]
    """Addresses by broker id; JSON has only text as names."""
    victim: str
    """The id of the broker that is attacked, where one is."""
    keeper: str = ""
    """Address of the coordination service; "" where there is none."""
    metrics: str = ""
    """Address of the victim's HTTP port; "" where there is none."""
    topic: str = ""
    """A topic of the other clients, which must not be harmed."""
    seed: str = "0"
    seconds: float = 6.0
    """How long a flood goes on."""
    size: float = 1.0
    """The share of the full size: a short test attacks with less."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def address(self) -> str:
        return self.brokers[self.victim]

    def share_of(self, count: int) -> int:
        return max(1, int(count * self.size))


@dataclass
class Outcome:
    """What came of an attack."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def note(self, name: str, count: int = 1) -> None:
        self.counts[name] += count

    def violate(self, what: str) -> None:
        if what not in self.violations and len(self.violations) < SHOWN_MAX:
            self.violations.append(what)

    def to_json(self) -> str:
        return json.dumps({"counts": self.counts, "violations": self.violations})

    @classmethod
    def from_json(cls, text: str) -> Self:
        read = json.loads(text)
        return cls(Counter(read["counts"]), read["violations"])


class Scene(NamedTuple):
    """The arguments of an attack."""

    target: Target
    chance: SeededRandomness
    outcome: Outcome


Send = Callable[[], None]
Build = Callable[[Scene], Send]
"""Builds what is sent and returns the function that sends it."""


class Attack(NamedTuple):
    """One entry of the catalogue."""

    name: str
    build: Build
    is_for_cluster: bool = False
    """It needs several brokers or their coordination service."""
    after_max_s: float = 30.0
    """How long the memory may take to come back: as long as a member's session, where one is."""


# -- frames ------------------------------------------------------------------------------------


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request_frame(request: Any, version: int, correlation_id: int = 1) -> bytes:
    header = encode_request_header(request.API_KEY, version, correlation_id, CLIENT_ID)
    return frame_of(header + request.encode(version))


def raw_frame(key: ApiKey, version: int, body: bytes) -> bytes:
    return frame_of(encode_request_header(key, version, 1, CLIENT_ID) + body)


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# -- connections -------------------------------------------------------------------------------


class Connection:
    """Blocking, with a limit for every wait; raises OSError."""

    def __init__(self, address: str, timeout_s: float = ANSWER_MAX_S) -> None:
        host, _, port = address.rpartition(":")
        self.socket: Final = socket.create_connection((host, int(port)), timeout_s)
        self.socket.settimeout(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read_exactly(4))
        return self._read_exactly(size)

    def call(self, request: Any, version: int) -> Any:
        """One request and its answer."""
        self.send(request_frame(request, version))
        frame = memoryview(self.read_frame())
        _, begin = decode_response_header(frame, request.API_KEY, version)
        return response_type(request.API_KEY).decode(frame[begin:], version)

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(min(size - len(data), CHUNK_BYTES))
            if not chunk:
                raise ConnectionError("closed by the broker")
            data += chunk
        return bytes(data)


def send_each(scene: Scene, frames: list[bytes], *, address: str = "") -> None:
    """One after the other, each on a connection of its own, waiting for its answer or its end."""
    for frame in frames:
        with noted(scene.outcome), Connection(address or scene.target.address) as connection:
            connection.send(frame)
            answer = connection.read_frame()
            scene.outcome.note("answers")
            scene.outcome.note("answered bytes", len(answer))


@contextmanager
def noted(outcome: Outcome) -> Iterator[None]:
    """What ends a connection is counted: a broker may refuse an attacker that way."""
    try:
        yield
    except TimeoutError:
        outcome.note("silent")
    except OSError:
        outcome.note("closed by the broker")


def deadline_of(target: Target) -> float:
    return time.monotonic() + target.seconds


def open_many(scene: Scene, count: int, *, address: str = "") -> list[socket.socket]:
    """As many connections as are accepted; the caller closes them."""
    found = []
    for _ in range(count):
        with noted(scene.outcome):
            found.append(Connection(address or scene.target.address, timeout_s=5.0).socket)
    return found


def write_rest(scene: Scene, rest: dict[socket.socket, memoryview], name: str) -> None:
    """Write to each what is left for it, until nothing is or the time is over; nothing is read."""
    end_s = deadline_of(scene.target)
    for one in rest:
        one.setblocking(False)
    while time.monotonic() < end_s and rest:
        _, writable, _ = select.select([], rest, [], POLL_S)
        for one in writable:
            try:
                rest[one] = rest[one][one.send(rest[one][:CHUNK_BYTES]) :]
            except OSError:
                scene.outcome.note("closed by the broker")
                del rest[one]
                continue
            if not rest[one]:
                del rest[one]
                scene.outcome.note(name)


def wait_until_s(end_s: float) -> None:
    time.sleep(max(0.0, end_s - time.monotonic()))


def reset_all(connections: list[socket.socket]) -> None:
    """Where much is left to send, a plain end comes after it: a broker that does not read would
    notice it only when it closes idle connections.
    """
    for one in connections:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    close_all(connections)


def close_all(connections: list[socket.socket]) -> None:
    for one in connections:
        with suppress(OSError):
            one.close()
