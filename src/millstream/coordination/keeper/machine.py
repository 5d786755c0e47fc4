"""The server without clock, disk or network: requests in, effects out.

A change is made in memory at once. What leaves the server because of it, or after it, must wait
until the log has it on disk; the shell knows by the order of effects: a `Send` or `Drop` may leave
when every `Log` before it is durable. So no client ever sees a change that a crash could undo.

A client that has not proved to have the cluster's secret is answered NO_AUTH, whatever it requests,
and leaves nothing behind: its session is not in the log and ends with its connection. One that
resumes a session from before the server asked for a secret does not keep it alive.
"""

import hmac
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.coordination.keeper import reads, replies
from millstream.coordination.keeper.access import Identity, upgrades
from millstream.coordination.keeper.changes import CloseSession, CreateNode, OpenSession, Txn
from millstream.coordination.keeper.clients import Client, Clients, read_identity
from millstream.coordination.keeper.jute import JuteReader, MalformedRequest, pack_text
from millstream.coordination.keeper.limits import (
    EPHEMERALS_PER_SESSION_MAX,
    REFUSED_REQUESTS_MAX,
    SESSIONS_MAX,
    SESSIONS_PER_ADDRESS_MAX,
    WATCHES_PER_ADDRESS_MAX,
    WATCHES_PER_CONNECTION_MAX,
)
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
from millstream.runtime.randomness import Randomness

_SESSION_ID_BASE: Final = 1 << 56
_SESSION_ID_BYTES: Final = 7
"""Random, below a first byte as ZooKeeper has it: a number that was given to a client is not given
to another one after a restart, although the log does not know it."""

_WITHOUT_SECRET: Final = (Op.PING, Op.AUTH, Op.SASL, Op.CLOSE_SESSION)


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


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the operator what a client did, not more often than lines of a kind are written."""

    connection: ConnectionId
    what: str


Effect = Log | Send | Drop | Warn


class Keys(NamedTuple):
    """What clients prove themselves with."""

    sessions: bytes
    """The secret behind the passwords of sessions; only the server has it."""
    cluster: Identity
    """Of the brokers, by the secret that they share."""


class Machine:
    """All decisions of the server."""

    def __init__(
        self,
        state: State,
        rules: SessionRules,
        *,
        keys: Keys,
        randomness: Randomness,
        now: Timestamps,
    ) -> None:
        self.state = state
        self.watches = WatchTable()
        self.sessions = LiveSessions(rules)
        self._clients = Clients()
        self._rules = rules
        self._keys = keys
        self._randomness = randomness
        for session_id, timeout_ms in state.sessions.items():
            self.sessions.track(session_id, timeout_ms=timeout_ms, now_ms=now.monotonic_ms)

    def upgrade(self, now: Timestamps) -> list[Effect]:
        """Give nodes from before there was this secret to the brokers that have it."""
        effects: list[Effect] = []
        draft = Draft(self.state, time_ms=now.wall_ms, session_id=NO_SESSION)
        for change in list(upgrades(self.state, self._keys.cluster)):
            draft.add(change)
        self._commit(draft, effects)
        return effects

    # -- connections and sessions -----------------------------------------------------------

    def connected(self, connection: ConnectionId, address: str) -> Client:
        """A client has connected; what it may do is in the value."""
        return self._clients.add(connection, address)

    def handle(self, connection: ConnectionId, frame: bytes, now: Timestamps) -> list[Effect]:
        """Handle one frame of a connection; its first requests a session."""
        session_id = self.sessions.of(connection)
        try:
            if session_id is None:
                return self._connect(connection, read_connect(frame), now)
            client = self._clients.of(connection)
            if client.is_authenticated or not self.sessions.is_open(session_id):
                self.sessions.touch(session_id, now.monotonic_ms)
            return self._request(client, session_id, frame, now)
        except MalformedRequest as error:
            return [Drop(connection, str(error))]

    def disconnected(self, connection: ConnectionId) -> None:
        """The session waits for its client to reconnect, if it had the secret."""
        self.watches.forget(connection)
        self._clients.remove(connection)
        session_id = self.sessions.of(connection)
        if session_id is not None and not self.sessions.is_open(session_id):
            self.sessions.remove(session_id)
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
            session_id = self._new_session_id()
            self.sessions.track(
                session_id, timeout_ms=granted_ms, now_ms=now.monotonic_ms, is_open=False
            )
        elif not self._may_resume(session_id, request.password):
            gone = replies.session_gone(with_read_only=request.knows_read_only)
            return [Send(connection, gone), Drop(connection, "no such session")]
        before = self.sessions.attach(session_id, connection, timeout_ms=granted_ms)
        if before is not None:
            self.watches.forget(before)
            effects.append(Drop(before, "the session moved to another connection"))
        answer = replies.connected(
            session_id,
            timeout_ms=granted_ms,
            password=password_of(self._keys.sessions, session_id),
            with_read_only=request.knows_read_only,
        )
        effects.append(Send(connection, answer))
        return effects

    def _may_resume(self, session_id: SessionId, password: bytes) -> bool:
        if session_id not in self.state.sessions:
            return False
        return hmac.compare_digest(password_of(self._keys.sessions, session_id), password)

    def _new_session_id(self) -> SessionId:
        while True:
            number = int.from_bytes(self._randomness.secret(_SESSION_ID_BYTES), "big")
            session_id = SessionId(_SESSION_ID_BASE + number)
            if session_id not in self.sessions:
                return session_id

    def _open_session(
        self, session_id: SessionId, address: str, now: Timestamps, effects: list[Effect]
    ) -> None:
        """Its client has proved to have the secret; raises KeeperError."""
        is_full = len(self.state.sessions) >= SESSIONS_MAX
        if is_full or self.sessions.open_at(address) >= SESSIONS_PER_ADDRESS_MAX:
            raise KeeperError(Code.QUOTA_EXCEEDED)
        draft = Draft(self.state, time_ms=now.wall_ms, session_id=session_id)
        draft.add(OpenSession(self.sessions.open(session_id, address)))
        self._commit(draft, effects)

    def _close_session(
        self, session_id: SessionId, now: Timestamps, effects: list[Effect]
    ) -> ConnectionId | None:
        is_open = self.sessions.is_open(session_id)
        connection = self.sessions.remove(session_id)
        if connection is not None:
            self.watches.forget(connection)
        if not is_open:
            return connection
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
        self, client: Client, session_id: SessionId, frame: bytes, now: Timestamps
    ) -> list[Effect]:
        connection = client.connection
        reader = JuteReader(frame)
        header = read_header(reader)
        if not client.is_authenticated:
            is_end = header.op == Op.CLOSE_SESSION and self.sessions.is_open(session_id)
            if header.op not in _WITHOUT_SECRET or is_end:
                return self._refuse(client, header)
        effects: list[Effect] = []
        body, code, watches = b"", Code.OK, self.watches.total
        try:
            op = _known(header.op)
            if op == Op.PING:
                return [Send(connection, replies.reply(PING_XID, self.state.last_zxid))]
            if op in (Op.AUTH, Op.SASL):
                return self._authenticate(client, session_id, header, reader, now)
            if op == Op.CLOSE_SESSION:
                return self._closed_by_client(connection, session_id, header, now)
            body = self._carry_out(client, session_id, op, reader, now, effects)
        except KeeperError as error:
            code = error.code
        except MalformedRequest:
            if not client.is_authenticated:
                raise
            code = Code.MARSHALLING
        answer = replies.reply(header.xid, self.state.last_zxid, code, body)
        effects.append(Send(connection, answer))
        if self.watches.total > watches and self._has_too_many_watches(client):
            effects += [Warn(connection, "too many watches"), Drop(connection, "too many watches")]
        return effects

    def _refuse(self, client: Client, header: Header) -> list[Effect]:
        """Without the secret nothing is read and nothing is changed."""
        client.refused += 1
        answer = replies.reply(header.xid, self.state.last_zxid, Code.NO_AUTH)
        effects: list[Effect] = [Send(client.connection, answer)]
        if client.refused == 1:
            effects.append(Warn(client.connection, "a request without the cluster's secret"))
        if client.refused >= REFUSED_REQUESTS_MAX:
            effects.append(Drop(client.connection, "too many requests without the secret"))
        return effects

    def _has_too_many_watches(self, client: Client) -> bool:
        count_of = self.watches.count_of
        if count_of(client.connection) > WATCHES_PER_CONNECTION_MAX:
            return True
        if self.watches.total <= WATCHES_PER_ADDRESS_MAX:
            return False  # so none of the addresses has more
        return sum(map(count_of, self._clients.at(client.address))) > WATCHES_PER_ADDRESS_MAX

    def _carry_out(
        self,
        client: Client,
        session_id: SessionId,
        op: Op,
        reader: JuteReader,
        now: Timestamps,
        effects: list[Effect],
    ) -> bytes:
        """The answer's body; raises KeeperError."""
        request, connection = read_request(op, reader), client.connection
        match request:
            case ReadRequest():
                return reads.read(self.state, self.watches, client, request)
            case MultiReadRequest(operations):
                return reads.read_all(self.state, self.watches, client, operations)
            case PathRequest():
                return reads.read_path(self.state, client, session_id, request)
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
                draft = self._draft(client, session_id, now)
                return self._multi(draft, client, operations, effects)
            case EmptyRequest():
                return replies.who_am_i(client.identities) if op == Op.WHO_AM_I else b""
            case _:
                draft = self._draft(client, session_id, now)
                body = self._apply(draft, client, request)[1]
                self._commit(draft, effects)
                return body

    def _draft(self, client: Client, session_id: SessionId, now: Timestamps) -> Draft:
        return Draft(self.state, time_ms=now.wall_ms, session_id=session_id, address=client.address)

    def _apply(self, draft: Draft, client: Client, request: WriteRequest) -> tuple[Op, bytes]:
        """Make one change and return the answer. Raises KeeperError without having changed
        anything.
        """
        change = change_of(self.state, request, client)
        if isinstance(change, CreateNode) and change.is_ephemeral:
            owned = self.state.ephemerals.get(draft.session_id, ())
            if len(owned) >= EPHEMERALS_PER_SESSION_MAX:
                raise KeeperError(Code.QUOTA_EXCEEDED)
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
        draft: Draft,
        client: Client,
        operations: tuple[WriteRequest, ...],
        effects: list[Effect],
    ) -> bytes:
        results: list[replies.MultiResult] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(draft, client, operation))
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
        self,
        client: Client,
        session_id: SessionId,
        header: Header,
        reader: JuteReader,
        now: Timestamps,
    ) -> list[Effect]:
        """The first proof must be that of the cluster's secret; it opens the session."""
        connection = client.connection
        effects: list[Effect] = []
        code, reason = Code.AUTH_FAILED, "unknown authentication"
        identity = read_identity(reader) if header.op == Op.AUTH else None
        if identity is not None:
            reason = "a wrong secret"
            try:
                if client.is_accepted(identity, self._keys.cluster):
                    if not self.sessions.is_open(session_id):
                        self._open_session(session_id, client.address, now, effects)
                    self.sessions.touch(session_id, now.monotonic_ms)
                    answer = replies.reply(header.xid, self.state.last_zxid)
                    return [*effects, Send(connection, answer)]
            except KeeperError as error:
                code, reason = error.code, "too many sessions"
        refused = replies.reply(header.xid, self.state.last_zxid, code)
        return [Warn(connection, reason), Send(connection, refused), Drop(connection, reason)]


def _known(number: int) -> Op:
    try:
        return Op(number)
    except ValueError:
        raise KeeperError(Code.UNIMPLEMENTED) from None
