"""The server without clock, disk or network: requests in, effects out.

A change is made in memory at once. What leaves the server because of it, or after it, must wait
until the log has it on disk; the shell knows by the order of effects: a `Send` or `Drop` may leave
when every `Log` before it is durable. So no client ever sees a change that a crash could undo.
"""

import hmac
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.coordination.keeper import reads, replies
from millstream.coordination.keeper.changes import CloseSession, CreateNode, OpenSession, Txn
from millstream.coordination.keeper.jute import JuteReader, MalformedRequest, pack_text
from millstream.coordination.keeper.limits import SESSIONS_MAX, WATCHES_PER_CONNECTION_MAX
from millstream.coordination.keeper.protocol import PING_XID, Code, Event, KeeperError, Op
from millstream.coordination.keeper.requests import (
    CheckRequest,
    ConnectRequest,
    CreateRequest,
    EmptyRequest,
    Header,
    MultiReadRequest,
    MultiRequest,
    PathRequest,
    ReadRequest,
    SetAclRequest,
    SetDataRequest,
    SetWatchesRequest,
    WatchRequest,
    WriteRequest,
    read_connect,
    read_header,
    read_request,
)
from millstream.coordination.keeper.sessions import LiveSessions, SessionRules, password_of
from millstream.coordination.keeper.state import Draft, State
from millstream.coordination.keeper.watches import ConnectionId, WatchTable
from millstream.coordination.keeper.writes import change_of
from millstream.model.ids import NO_SESSION, SessionId
from millstream.model.invariant import invariant

_SESSION_ID_BASE: Final = 1 << 56
"""Sessions are numbered by the zxid that opened them, above a first byte as ZooKeeper has it."""

_ACCEPTED_AUTH: Final = ("digest", "ip")


class Timestamps(NamedTuple):
    """Both clocks: one for deadlines, one for the times that nodes carry."""

    monotonic_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Log:
    """Make this durable."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class Send:
    """Hand this frame to the connection."""

    connection: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection behind what was sent to it."""

    connection: ConnectionId
    reason: str


Effect = Log | Send | Drop


class Machine:
    """All decisions of the server."""

    def __init__(
        self, state: State, rules: SessionRules, *, secret: bytes, now: Timestamps
    ) -> None:
        self.state = state
        self.watches = WatchTable()
        self.sessions = LiveSessions(rules)
        self._rules = rules
        self._secret = secret
        for session_id, timeout_ms in state.sessions.items():
            self.sessions.track(session_id, timeout_ms=timeout_ms, now_ms=now.monotonic_ms)

    # -- connections and sessions -----------------------------------------------------------

    def handle(self, connection: ConnectionId, frame: bytes, now: Timestamps) -> list[Effect]:
        """Handle one frame of a connection; its first requests a session."""
        session_id = self.sessions.of(connection)
        try:
            if session_id is None:
                return self._connect(connection, read_connect(frame), now)
            self.sessions.touch(session_id, now.monotonic_ms)
            return self._request(connection, session_id, frame, now)
        except MalformedRequest as error:
            return [Drop(connection, str(error))]

    def disconnected(self, connection: ConnectionId) -> None:
        """The session waits for its client to reconnect."""
        self.watches.forget(connection)
        self.sessions.detach(connection)

    def expire(self, now: Timestamps) -> list[Effect]:
        """Close the sessions whose time is up."""
        effects: list[Effect] = []
        for session_id in self.sessions.expired(now.monotonic_ms):
            connection = self._close_session(session_id, now, effects)
            if connection is not None:
                effects.append(Drop(connection, "session expired"))
        return effects

    def _connect(
        self, connection: ConnectionId, request: ConnectRequest, now: Timestamps
    ) -> list[Effect]:
        if request.last_zxid_seen > self.state.last_zxid:
            return [Drop(connection, "the client has seen changes that this server has not")]
        effects: list[Effect] = []
        granted_ms = self._rules.granted_ms(request.timeout_ms)
        session_id = request.session_id
        if session_id == NO_SESSION:
            if len(self.sessions) >= SESSIONS_MAX:
                return [Drop(connection, "too many sessions")]
            session_id = self._open_session(granted_ms, now, effects)
        elif not self._may_resume(session_id, request.password):
            gone = replies.session_gone(with_read_only=request.knows_read_only)
            return [Send(connection, gone), Drop(connection, "no such session")]
        before = self.sessions.attach(
            session_id, connection, timeout_ms=granted_ms, now_ms=now.monotonic_ms
        )
        if before is not None:
            self.watches.forget(before)
            effects.append(Drop(before, "the session moved to another connection"))
        answer = replies.connected(
            session_id,
            timeout_ms=granted_ms,
            password=password_of(self._secret, session_id),
            with_read_only=request.knows_read_only,
        )
        effects.append(Send(connection, answer))
        return effects

    def _may_resume(self, session_id: SessionId, password: bytes) -> bool:
        if session_id not in self.state.sessions:
            return False
        return hmac.compare_digest(password_of(self._secret, session_id), password)

    def _open_session(self, timeout_ms: int, now: Timestamps, effects: list[Effect]) -> SessionId:
        session_id = SessionId(_SESSION_ID_BASE + self.state.last_zxid + 1)
        draft = Draft(self.state, time_ms=now.wall_ms, session_id=session_id)
        draft.add(OpenSession(timeout_ms))
        self._commit(draft, effects)
        self.sessions.track(session_id, timeout_ms=timeout_ms, now_ms=now.monotonic_ms)
        return session_id

    def _close_session(
        self, session_id: SessionId, now: Timestamps, effects: list[Effect]
    ) -> ConnectionId | None:
        connection = self.sessions.remove(session_id)
        if connection is not None:
            self.watches.forget(connection)
        draft = Draft(self.state, time_ms=now.wall_ms, session_id=session_id)
        draft.add(CloseSession())
        self._commit(draft, effects)
        invariant(session_id not in self.state.ephemerals, "ephemerals outlived their session")
        return connection

    def _commit(self, draft: Draft, effects: list[Effect]) -> None:
        """The log first, then the watch events."""
        txn = draft.commit()
        if txn is not None:
            effects.append(Log(txn))

        def notify(connection: ConnectionId, kind: Event, path: str) -> None:
            effects.append(Send(connection, replies.event(kind, path, draft.zxid)))

        for trigger in draft.triggers:
            self.watches.fire(trigger, notify)

    # -- requests ---------------------------------------------------------------------------

    def _request(
        self, connection: ConnectionId, session_id: SessionId, frame: bytes, now: Timestamps
    ) -> list[Effect]:
        reader = JuteReader(frame)
        header = read_header(reader)
        effects: list[Effect] = []
        body, code = b"", Code.OK
        try:
            op = _known(header.op)
            if op == Op.PING:
                return [Send(connection, replies.reply(PING_XID, self.state.last_zxid))]
            if op in (Op.AUTH, Op.SASL):
                return self._authenticate(connection, header, reader)
            if op == Op.CLOSE_SESSION:
                return self._closed_by_client(connection, session_id, header, now)
            body = self._carry_out(connection, session_id, op, reader, now, effects)
        except KeeperError as error:
            code = error.code
        except MalformedRequest:
            code = Code.MARSHALLING
        answer = replies.reply(header.xid, self.state.last_zxid, code, body)
        effects.append(Send(connection, answer))
        if self.watches.count_of(connection) > WATCHES_PER_CONNECTION_MAX:
            effects.append(Drop(connection, "too many watches"))
        return effects

    def _carry_out(
        self,
        connection: ConnectionId,
        session_id: SessionId,
        op: Op,
        reader: JuteReader,
        now: Timestamps,
        effects: list[Effect],
    ) -> bytes:
        """The answer's body; raises KeeperError."""
        request = read_request(op, reader)
        match request:
            case ReadRequest():
                return reads.read(self.state, self.watches, connection, request)
            case MultiReadRequest(operations):
                return reads.read_all(self.state, self.watches, connection, operations)
            case PathRequest():
                return reads.read_path(self.state, session_id, request)
            case WatchRequest():
                return reads.change_watches(self.watches, connection, request)
            case SetWatchesRequest():
                for kind, path in reads.restore_watches(
                    self.state, self.watches, connection, request
                ):
                    frame = replies.event(kind, path, self.state.last_zxid)
                    effects.append(Send(connection, frame))
                return b""
            case MultiRequest(operations):
                return self._multi(session_id, operations, now, effects)
            case EmptyRequest():
                return replies.who_am_i() if op == Op.WHO_AM_I else b""
            case _:
                draft = Draft(self.state, time_ms=now.wall_ms, session_id=session_id)
                body = self._apply(draft, request)[1]
                self._commit(draft, effects)
                return body

    def _apply(self, draft: Draft, request: WriteRequest) -> tuple[Op, bytes]:
        """Make one change and return the answer. Raises KeeperError without having changed
        anything.
        """
        change = change_of(self.state, request)
        if change is not None:
            draft.add(change)
        path = change.path if isinstance(change, CreateNode) else request.path
        node = self.state.nodes.get(path)
        stat = replies.stat(node.stat()) if node is not None else b""
        match request:
            case CreateRequest(wants_stat=True):
                return Op.CREATE2, pack_text(path) + stat
            case CreateRequest():
                return Op.CREATE, pack_text(path)
            case SetDataRequest():
                return Op.SET_DATA, stat
            case SetAclRequest():
                return Op.SET_ACL, stat
            case CheckRequest():
                return Op.CHECK, b""
            case _:
                return Op.DELETE, b""

    def _multi(
        self,
        session_id: SessionId,
        operations: tuple[WriteRequest, ...],
        now: Timestamps,
        effects: list[Effect],
    ) -> bytes:
        draft = Draft(self.state, time_ms=now.wall_ms, session_id=session_id)
        results: list[replies.MultiResult] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(draft, operation))
            except KeeperError as error:
                draft.undo()
                untried = len(operations) - index - 1
                codes = [Code.OK] * index + [error.code]
                return replies.multi(codes + [Code.RUNTIME_INCONSISTENCY] * untried)
        self._commit(draft, effects)
        return replies.multi(results)

    def _closed_by_client(
        self, connection: ConnectionId, session_id: SessionId, header: Header, now: Timestamps
    ) -> list[Effect]:
        effects: list[Effect] = []
        self._close_session(session_id, now, effects)
        answer = replies.reply(header.xid, self.state.last_zxid)
        return [*effects, Send(connection, answer), Drop(connection, "closed by the client")]

    def _authenticate(
        self, connection: ConnectionId, header: Header, reader: JuteReader
    ) -> list[Effect]:
        """All nodes are open to all clients, so a client's identity makes no difference."""
        if header.op == Op.AUTH:
            reader.integer()
            if reader.text() in _ACCEPTED_AUTH:
                return [Send(connection, replies.reply(header.xid, self.state.last_zxid))]
        refused = replies.reply(header.xid, self.state.last_zxid, Code.AUTH_FAILED)
        return [Send(connection, refused), Drop(connection, "unknown authentication")]


def _known(number: int) -> Op:
    try:
        return Op(number)
    except ValueError:
        raise KeeperError(Code.UNIMPLEMENTED) from None
