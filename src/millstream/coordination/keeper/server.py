"""The shell: a listening port, connections, ticks, and effects carried out in order."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from millstream.coordination.credentials import SCHEME, Credentials
from millstream.coordination.keeper import words
from millstream.coordination.keeper.access import Identity
from millstream.coordination.keeper.admission import Admission
from millstream.coordination.keeper.commits import Commits
from millstream.coordination.keeper.connection import KeeperConnection
from millstream.coordination.keeper.journal import Journal
from millstream.coordination.keeper.limits import (
    AUTHENTICATION_TIMEOUT_MS,
    HANDSHAKE_TIMEOUT_MS,
    LOG_ROLL_BYTES,
    READ_BUFFER_BYTES,
    STOP_TIMEOUT_S,
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
from millstream.coordination.keeper.sessions import SessionRules
from millstream.coordination.keeper.watches import ConnectionId
from millstream.model.invariant import invariant
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.background import Background, run_in_background
from millstream.runtime.clock import Clock
from millstream.runtime.disk import Disk
from millstream.runtime.network import Listener, Network
from millstream.runtime.randomness import Randomness

log = get_logger("millstream.coordination.keeper.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """What an operator decides."""

    directory: str
    host: str = "127.0.0.1"
    port: int = 2181
    rules: SessionRules = field(default_factory=SessionRules)
    log_roll_bytes: int = LOG_ROLL_BYTES
    credentials: Credentials | None = None
    """What brokers prove themselves with; None: the secret in the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperDependencies:
    """Everything outside of the server."""

    network: Network
    disk: Disk
    background: Background
    clock: Clock
    randomness: Randomness


@dataclass(slots=True)
class _Counts:
    """Counters since the start, including closed connections."""

    received: int = 0
    sent: int = 0
    answered: int = 0
    latency_sum_ms: int = 0
    latency_min_ms: int = 0
    latency_max_ms: int = 0

    def answered_after(self, latency_ms: int) -> None:
        is_first = self.answered == 0
        self.answered += 1
        self.latency_sum_ms += latency_ms
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)
        self.latency_min_ms = latency_ms if is_first else min(self.latency_min_ms, latency_ms)


class KeeperServer:
    """One server; `start` once, then `stop` once."""

    def __init__(self, dependencies: KeeperDependencies, settings: KeeperSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._journal = Journal(
            dependencies.disk, settings.directory, roll_bytes=settings.log_roll_bytes
        )
        self._machine: Machine
        self._commits: Commits
        self._admission = Admission()
        self._client_log = ClientLog(dependencies.clock)
        self.credentials: Credentials
        """What clients need; known after `start`."""
        self._connections: dict[ConnectionId, KeeperConnection] = {}
        self._last_connection_id = 0
        self._listener: Listener | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._ticked_ms = 0
        self._counts = _Counts()
        self._all_closed = asyncio.Event()
        self.chunk = memoryview(bytearray(READ_BUFFER_BYTES))
        self.failure: BaseException | None = None
        self.ended = asyncio.Event()
        """Set by `stop`, and by a disk that failed: then `failure` says why."""

    @property
    def port(self) -> int:
        invariant(self._listener is not None, "the port of a server that was not started")
        return self._listener.port if self._listener is not None else 0

    @property
    def machine(self) -> Machine:
        return self._machine

    async def start(self) -> None:
        """Read the files, then listen; raises KeeperDataDamaged, KeeperDataLocked, OSError."""
        recovered = await run_in_background(
            self._dependencies.background,
            lambda: self._journal.open(self._dependencies.randomness, self._settings.credentials),
            name="keeper start",
        )
        if recovered.truncated_bytes:
            log.warning("truncated the torn end of the journal", bytes=recovered.truncated_bytes)
        state, rules = recovered.state, self._settings.rules
        now = self._now()
        self.credentials = recovered.credentials
        cluster = Identity(SCHEME, self.credentials.identity())
        self._machine = Machine(
            state,
            rules,
            keys=Keys(recovered.secret, cluster),
            randomness=self._dependencies.randomness,
            now=now,
        )
        self._commits = Commits(
            self._journal, self._dependencies.background, state.last_zxid, self._failed
        )
        try:
            self._listener = await self._dependencies.network.listen(
                self._make_connection, host=self._settings.host, port=self._settings.port
            )
        except BaseException:
            self._journal.close()
            raise
        self._carry_out(self._machine.upgrade(now))
        self._commits.start()
        self._ticked_ms = now.monotonic_ms
        self._schedule_tick()
        log.info("listening", port=self.port, nodes=len(state.nodes), zxid=state.last_zxid)

    async def stop(self) -> None:
        """Sessions stay: their clients may reconnect to the next server in time."""
        if self._listener is not None:
            self._listener.close()
        if self._tick is not None:
            self._tick.cancel()
        for connection in self._connections.values():
            connection.is_ending = True  # requests under way are answered, new ones are not read
        is_idle = await self._commits.wait_idle(timeout_s=STOP_TIMEOUT_S)
        await self._close_connections()
        if is_idle:  # a thread that hangs in the disk still has the file
            self._journal.close()
        if self._listener is not None:
            await self._listener.wait_closed()
        self._client_log.close()
        self.ended.set()

    async def _close_connections(self) -> None:
        """Close each after its last answer is sent, unless its client does not read it."""
        self._all_closed.clear()
        for connection in list(self._connections.values()):
            connection.close()
        if self._connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._all_closed.wait()
        for connection in list(self._connections.values()):
            connection.abort()

    # -- connections ------------------------------------------------------------------------

    def _make_connection(self) -> KeeperConnection:
        self._last_connection_id += 1
        return KeeperConnection(self, ConnectionId(self._last_connection_id))

    def opened(self, connection: KeeperConnection, address: str) -> None:
        connection.opened_ms = self._now().monotonic_ms
        if self.failure is not None:
            connection.abort()
            return
        connection_id = connection.connection_id
        self._connections[connection_id] = connection
        connection.client = self._machine.connected(connection_id, address)
        connection.use = self._admission.opened(connection_id, address)
        surplus = self._admission.surplus(connection.use)
        if surplus is not None:
            self._expel(self._connections[surplus], "too many connections without the secret")

    def _expel(self, connection: KeeperConnection, reason: str) -> None:
        self._warn(connection, reason)
        self._admission.closed(connection.connection_id, connection.use)
        connection.abort()

    def _warn(self, connection: KeeperConnection, what: str) -> None:
        self._client_log.warning(log, f"client refused: {what}", client=connection.client.address)

    def take_frame(self, connection: KeeperConnection, frame: bytes) -> None:
        now = self._now()
        self._counts.received += 1
        was_known = connection.client.is_authenticated
        if not was_known:
            self._admission.greeted(connection.connection_id, connection.use)
        self._carry_out(self._machine.handle(connection.connection_id, frame, now))
        if not was_known and connection.client.is_authenticated:
            self._admit(connection)

        def answered() -> None:
            connection.answered(len(frame))
            self._counts.answered_after(self._now().monotonic_ms - now.monotonic_ms)

        self._commits.when_durable(answered)
        self._commits.start()

    def _admit(self, connection: KeeperConnection) -> None:
        if not self._admission.is_admitted(connection.connection_id, connection.use):
            self._expel(connection, "too many connections")

    def take_word(self, connection: KeeperConnection, word: str) -> None:
        connection.send(words.answer(word, self._machine, self._figures()).encode())
        connection.close()

    def closed(self, connection: KeeperConnection) -> None:
        if self._connections.pop(connection.connection_id, None) is not None:
            self._counts.sent += connection.sent_count
            self._admission.closed(connection.connection_id, connection.use)
            self._machine.disconnected(connection.connection_id)
            if not self._connections:
                self._all_closed.set()

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Log(txn):
                    self._commits.log(txn)
                case Send(connection_id, frame):
                    self._send(connection_id, frame)
                case Drop(connection_id, reason):
                    self._drop(connection_id, reason)
                case Warn(connection_id, what):
                    connection = self._connections.get(connection_id)
                    if connection is not None:
                        self._warn(connection, what)

    def _send(self, connection_id: ConnectionId, frame: bytes) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._commits.when_durable(lambda: connection.send(frame))

    def _drop(self, connection_id: ConnectionId, reason: str) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            client, peer = connection.client.address, connection.peer
            self._client_log.debug(
                log, "connection closed", client=client, peer=peer, reason=reason
            )
            connection.is_ending = True
            self._commits.when_durable(connection.close)

    # -- time -------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        delay_s = self._settings.rules.tick_ms / 1000
        self._tick = asyncio.get_running_loop().call_later(delay_s, self._on_tick)

    def _on_tick(self) -> None:
        now = self._now()
        tick_ms = self._settings.rules.tick_ms
        late_ms = now.monotonic_ms - self._ticked_ms - tick_ms
        self._ticked_ms = now.monotonic_ms
        if late_ms >= tick_ms:
            # This process was stalled, not its clients: their pings are waiting in the sockets.
            self._machine.sessions.postpone(late_ms)
        self._carry_out(self._machine.expire(now))
        self._commits.start()
        self._expel_late(now.monotonic_ms)
        self._client_log.sweep()
        self._schedule_tick()

    def _expel_late(self, now_ms: int) -> None:
        """Connections that have not requested a session, or not proved to have the secret."""
        for connection_id in self._admission.newcomers():
            connection = self._connections[connection_id]
            is_new = self._machine.sessions.of(connection_id) is None
            limit_ms = HANDSHAKE_TIMEOUT_MS if is_new else AUTHENTICATION_TIMEOUT_MS
            if now_ms - connection.opened_ms > limit_ms:
                self._expel(connection, "no session" if is_new else "no proof of the secret")

    def _now(self) -> Timestamps:
        clock = self._dependencies.clock
        return Timestamps(int(clock.monotonic_s() * 1000), clock.wall_ms())

    # -- failures and figures ---------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """The disk failed. Memory is ahead of it, so only a restart can find the durable state."""
        log.error("disk failed", error=error)
        self.failure = error
        if self._listener is not None:
            self._listener.close()
        if self._tick is not None:
            self._tick.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        self.ended.set()

    def _figures(self) -> words.Figures:
        counts, connections = self._counts, self._connections.values()
        return words.Figures(
            connections=len(connections),
            durable_zxid=self._commits.durable,
            received=counts.received,
            sent=counts.sent + sum(one.sent_count for one in connections),
            outstanding=sum(one.outstanding for one in connections),
            latency_min_ms=counts.latency_min_ms,
            latency_avg_ms=counts.latency_sum_ms / max(1, counts.answered),
            latency_max_ms=counts.latency_max_ms,
        )
