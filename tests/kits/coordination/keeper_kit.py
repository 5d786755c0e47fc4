"""The keeper's machine without a server: frames in, answers out, the clock in the test's hand."""

from collections.abc import Sequence
from typing import NamedTuple

from kits.coordination.coordination_kit import CREDENTIALS
from millstream.coordination.credentials import Credentials
from millstream.coordination.keeper.access import Identity
from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.jute import (
    JuteReader,
    pack_buffer,
    pack_integer,
    pack_long,
    pack_text,
    pack_texts,
)
from millstream.coordination.keeper.machine import (
    Drop,
    Effect,
    Keys,
    Log,
    Machine,
    Send,
    Timestamps,
    Warn,
)
from millstream.coordination.keeper.protocol import Op
from millstream.coordination.keeper.sessions import SessionRules
from millstream.coordination.keeper.state import NO_ZXID, State
from millstream.coordination.keeper.watches import ConnectionId
from millstream.coordination.port import NodeKind
from millstream.model.ids import NO_SESSION, SessionId, Zxid
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim import keeper_requests as wire

SECRET = b"s" * 32
RULES = SessionRules(tick_ms=500)


class Answer(NamedTuple):
    xid: int
    zxid: int
    code: int
    body: bytes


class Greeting(NamedTuple):
    timeout_ms: int
    session_id: SessionId
    password: bytes
    has_read_only: bool


class Bench:
    """A machine and what it did."""

    def __init__(
        self, state: State | None = None, rules: SessionRules = RULES, *, seed: int = 1
    ) -> None:
        self.now = Timestamps(10_000, 1_700_000_000_000)
        keys = Keys(SECRET, Identity("digest", CREDENTIALS.identity()))
        self.machine = Machine(
            state or State(), rules, keys=keys, randomness=SeededRandomness(seed), now=self.now
        )
        self.txns: list[Txn] = []
        self.sent: dict[int, list[bytes]] = {}
        self.dropped: dict[int, str] = {}
        self.warnings: list[tuple[int, str]] = []
        self._xid = 0

    def advance(self, by_ms: int) -> None:
        self.now = Timestamps(self.now.monotonic_ms + by_ms, self.now.wall_ms + by_ms)
        self.carry_out(self.machine.expire(self.now))

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Log(txn):
                    self.txns.append(txn)
                case Send(connection, frame):
                    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
                    self.sent.setdefault(connection, []).append(frame[4:])
                case Drop(connection, reason):
                    self.dropped[connection] = reason
                case Warn(connection, what):
                    self.warnings.append((connection, what))

    def give(self, connection: int, frame: bytes) -> None:
        """A frame without its length."""
        self.carry_out(self.machine.handle(ConnectionId(connection), frame, self.now))

    def connect(
        self,
        connection: int,
        *,
        session_id: SessionId = NO_SESSION,
        password: bytes = bytes(16),
        timeout_ms: int = 6000,
        last_zxid: Zxid = NO_ZXID,
        credentials: Credentials | None = CREDENTIALS,
    ) -> Greeting | None:
        """None when the server hung up instead. The secret is proved at once."""
        frame = wire.connect_frame(
            last_zxid=last_zxid, timeout_ms=timeout_ms, session_id=session_id, password=password
        )
        self.give(connection, frame[4:])
        if not self.sent.get(connection):
            return None
        reader = JuteReader(self.sent[connection].pop(0))
        assert reader.integer() == 0
        granted_ms, given_id = reader.integer(), SessionId(reader.long())
        greeting = Greeting(granted_ms, given_id, reader.buffer() or b"", reader.remaining == 1)
        if credentials is not None and granted_ms > 0:
            self.prove(connection, credentials)
        return greeting

    def prove(self, connection: int, credentials: Credentials = CREDENTIALS) -> Answer:
        """Send the secret."""
        self.give(connection, wire.auth_frame(credentials)[4:])
        return answer_of(self.sent[connection].pop())

    def request(
        self, connection: int, op: int, body: bytes = b"", xid: int | None = None
    ) -> Answer:
        """The answer; events that came before it stay in `sent`."""
        self._xid += 1
        number = self._xid if xid is None else xid
        self.give(connection, pack_integer(number) + pack_integer(op) + body)
        return answer_of(self.sent[connection].pop())

    def create(self, connection: int, path: str, data: bytes = b"", **options: NodeKind) -> Answer:
        kind = options.get("kind", NodeKind.PERSISTENT)
        return self.request(connection, Op.CREATE, wire.create(path, data, kind))

    def events(self, connection: int) -> list[tuple[int, str]]:
        """The events since the last call."""
        found = []
        for frame in self.sent.pop(connection, []):
            answer = answer_of(frame)
            assert answer.xid == -1
            reader = JuteReader(answer.body)
            kind, state = reader.integer(), reader.integer()
            assert state == 3
            found.append((kind, reader.text() or ""))
        return found


def answer_of(frame: bytes) -> Answer:
    reader = JuteReader(frame)
    return Answer(reader.integer(), reader.long(), reader.integer(), frame[16:])


def acl(permissions: int, scheme: str = "world", identity: str = "anyone") -> bytes:
    entry = pack_integer(permissions) + pack_text(scheme) + pack_text(identity)
    return pack_integer(1) + entry


def create_with_acl(path: str, acls: bytes) -> bytes:
    return pack_text(path) + pack_buffer(b"") + acls + pack_integer(0)


def set_watches(since: int, *paths: list[str]) -> bytes:
    return pack_long(since) + b"".join(map(pack_texts, paths))
