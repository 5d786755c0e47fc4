"""Attacks on the coordination service: what is inside without the secret, and floods of it."""

import struct
import time
from collections.abc import Iterator
from typing import Final

from millstream.coordination.keeper.protocol import OPEN_PERMISSIONS, PASSWORD_BYTES, Code, Op
from millstream.testing.chaos.hostile.attack import (
    Attack,
    Connection,
    Scene,
    Send,
    close_all,
    deadline_of,
    frame_of,
    noted,
)

SESSION_MS: Final = 6_000
SESSIONS: Final = 3_000
NODES: Final = 20_000
NODE_DATA_BYTES: Final = 1_000
WATCHES: Final = 200_000
IN_FLIGHT: Final = 200
_HEADER: Final = struct.Struct(">ii")
_REPLY: Final = struct.Struct(">iqi")
_ANY_VERSION: Final = -1
_READS: Final = ("/", "/brokers", "/brokers/ids", "/controller", "/cluster/id", "/config/topics")
_DELETED: Final = ("/controller", "/controller_epoch", "/brokers/ids/1", "/cluster/id")


def attacks() -> Iterator[Attack]:
    for name, build in (
        ("keeper: sessions", _sessions),
        ("keeper: nodes", _nodes),
        ("keeper: watches", _watches),
        ("keeper: garbage", _garbage),
        ("keeper: connections that come and go", _come_and_go),
        ("keeper: reads and deletes without the secret", _without_secret),
    ):
        yield Attack(name, build, is_for_cluster=True, after_max_s=60.0)


class KeeperClient(Connection):
    """A session with nothing but the protocol; raises OSError where none is given."""

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout_s=10.0)
        connect = struct.pack(">iqiqi", 0, 0, SESSION_MS, 0, PASSWORD_BYTES)
        self.send(frame_of(connect + bytes(PASSWORD_BYTES)))
        answer = self.read_frame()
        if len(answer) < 8 or struct.unpack_from(">i", answer, 4)[0] <= 0:
            self.socket.close()
            raise ConnectionError("no session was given")
        self._xid = 0

    def write(self, op: Op, body: bytes) -> None:
        self._xid += 1
        self.send(frame_of(_HEADER.pack(self._xid, op) + body))

    def read(self) -> tuple[Code | int, bytes]:
        """The code of the next answer, events left out, and what follows it."""
        while True:
            frame = self.read_frame()
            xid, _, code = _REPLY.unpack_from(frame)
            if xid >= 0:
                known = code in Code._value2member_map_
                return (Code(code) if known else code), frame[_REPLY.size :]

    def call(self, op: Op, body: bytes) -> tuple[Code | int, bytes]:  # type: ignore[override]
        self.write(op, body)
        return self.read()


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def _create(path: str, data: bytes) -> bytes:
    acl = struct.pack(">ii", 1, OPEN_PERMISSIONS) + _text("world") + _text("anyone")
    return _text(path) + struct.pack(">i", len(data)) + data + acl + struct.pack(">i", 0)


def _sessions(scene: Scene) -> Send:
    def send() -> None:
        opened = []
        end_s = deadline_of(scene.target)
        for _ in range(scene.target.share_of(SESSIONS)):
            if time.monotonic() > end_s:
                break
            with noted(scene.outcome):
                opened.append(KeeperClient(scene.target.keeper).socket)
                scene.outcome.note("sessions opened")
        close_all(opened)

    return send


def _pipelined(scene: Scene, op: Op, bodies: Iterator[bytes]) -> None:
    """Some at a time, until the time is over; codes are counted."""
    end_s = deadline_of(scene.target)
    with noted(scene.outcome), KeeperClient(scene.target.keeper) as client:
        waiting = 0
        for body in bodies:
            client.write(op, body)
            waiting += 1
            if waiting == IN_FLIGHT:
                waiting -= _read_all(scene, client, waiting)
            if time.monotonic() > end_s:
                break
        _read_all(scene, client, waiting)


def _read_all(scene: Scene, client: KeeperClient, waiting: int) -> int:
    for _ in range(waiting):
        code, _ = client.read()
        name = code.name if isinstance(code, Code) else str(code)
        scene.outcome.note(f"answers: {name}")
        if code is not Code.NO_AUTH:
            scene.outcome.violate(f"keeper without the secret: {name}, not NO_AUTH")
    return waiting


def _nodes(scene: Scene) -> Send:
    data, mark = bytes(NODE_DATA_BYTES), scene.chance.integer(0, 2**30)
    count = scene.target.share_of(NODES)
    bodies = [_create(f"/hostile-{mark}-{number}", data) for number in range(count)]
    return lambda: _pipelined(scene, Op.CREATE, iter(bodies))


def _watches(scene: Scene) -> Send:
    count = scene.target.share_of(WATCHES)
    bodies = [_text(f"/brokers/hostile-{number}") + b"\1" for number in range(count)]
    return lambda: _pipelined(scene, Op.EXISTS, iter(bodies))


def _garbage(scene: Scene) -> Send:
    junk = [scene.chance.bytes(scene.chance.integer(1, 4_000)) for _ in range(200)]
    framed = [frame_of(one) for one in junk[::2]]

    def send() -> None:
        end_s = deadline_of(scene.target)
        while time.monotonic() < end_s:
            with noted(scene.outcome), Connection(scene.target.keeper, timeout_s=5.0) as connection:
                connection.send(scene.chance.choice([*junk, *framed]))
                scene.outcome.note("garbage sent")
            with noted(scene.outcome), KeeperClient(scene.target.keeper) as client:
                client.send(scene.chance.choice(framed))
                client.read_frame()
                scene.outcome.note("answers")

    return send


def _come_and_go(scene: Scene) -> Send:
    def send() -> None:
        end_s = deadline_of(scene.target)
        while time.monotonic() < end_s:
            with noted(scene.outcome), Connection(scene.target.keeper):
                scene.outcome.note("connections opened")

    return send


def _without_secret(scene: Scene) -> Send:
    """Every read and every change must be refused, or the session closed."""

    def send() -> None:
        for path in _READS:
            _refused(scene, f"read {path}", Op.GET_DATA, _text(path) + b"\0")
            _refused(scene, f"list {path}", Op.GET_CHILDREN, _text(path) + b"\0")
        for path in _DELETED:
            _refused(
                scene, f"delete {path}", Op.DELETE, _text(path) + struct.pack(">i", _ANY_VERSION)
            )
        _refused(scene, "create /hostile", Op.CREATE, _create("/hostile", b""))

    return send


def _refused(scene: Scene, what: str, op: Op, body: bytes) -> None:
    with noted(scene.outcome), KeeperClient(scene.target.keeper) as client:
        code, _ = client.call(op, body)
        scene.outcome.note("requests answered")
        if code is not Code.NO_AUTH:
            name = code.name if isinstance(code, Code) else code
            scene.outcome.violate(f"keeper without the secret: {what}: {name}, not NO_AUTH")
