"""The shell: a listening port, connections, ticks, and effects carried out in order."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from millstream.coordination.keeper import words
from millstream.coordination.keeper.commits import Commits
from millstream.coordination.keeper.connection import KeeperConnection
from millstream.coordination.keeper.journal import Journal
from millstream.coordination.keeper.limits import (
    CONNECTIONS_MAX,
    HANDSHAKE_TIMEOUT_MS,
    LOG_ROLL_BYTES,
    READ_BUFFER_BYTES,
    STOP_TIMEOUT_S,
)
from millstream.coordination.keeper.machine import Drop, Effect, Log, Machine, Send, Timestamps
from millstream.coordination.keeper.sessions import SessionRules
from millstream.coordination.keeper.watches import ConnectionId
from millstream.model.invariant import invariant
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
            lambda: self._journal.open(self._dependencies.randomness),
            name="keeper start",
        )
        if recovered.truncated_bytes:
            log.warning("truncated the torn end of the journal", bytes=recovered.truncated_bytes)
        state, rules = recovered.state, self._settings.rules
        now = self._now()
        self._machine = Machine(state, rules, secret=recovered.secret, now=now)
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

    def opened(self, connection: KeeperConnection) -> None:
        connection.opened_ms = self._now().monotonic_ms
        if self.failure is not None or len(self._connections) >= CONNECTIONS_MAX:
            connection.abort()
            return
        self._connections[connection.connection_id] = connection

    def take_frame(self, connection: KeeperConnection, frame: bytes) -> None:
        now = self._now()
        self._counts.received += 1
        self._carry_out(self._machine.handle(connection.connection_id, frame, now))

        def answered() -> None:
            connection.answered()
            self._counts.answered_after(self._now().monotonic_ms - now.monotonic_ms)

        self._commits.when_durable(answered)
        self._commits.start()

    def take_word(self, connection: KeeperConnection, word: str) -> None:
        connection.send(words.answer(word, self._machine, self._figures()).encode())
        connection.close()

    def closed(self, connection: KeeperConnection) -> None:
        if self._connections.pop(connection.connection_id, None) is not None:
            self._counts.sent += connection.sent_count
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

    def _send(self, connection_id: ConnectionId, frame: bytes) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._commits.when_durable(lambda: connection.send(frame))

    def _drop(self, connection_id: ConnectionId, reason: str) -> None:
        connection = self._connections.get(connection_id)
        if connection is not None:
            log.debug("connection closed", peer=connection.peer, reason=reason)
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
        for connection in list(self._connections.values()):
            is_new = self._machine.sessions.of(connection.connection_id) is None
            if is_new and now.monotonic_ms - connection.opened_ms > HANDSHAKE_TIMEOUT_MS:
                connection.abort()
        self._schedule_tick()

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
        counts, rules = self._counts, self._settings.rules
        clients = [
            words.Client(one.peer, one.outstanding, one.received_count, one.sent_count)
            for one in self._connections.values()
        ]
        return words.Figures(
            clients=clients,
            durable_zxid=self._commits.durable,
            received=counts.received,
            sent=counts.sent + sum(one.sent for one in clients),
            outstanding=sum(one.queued for one in clients),
            latency_min_ms=counts.latency_min_ms,
            latency_avg_ms=counts.latency_sum_ms / max(1, counts.answered),
            latency_max_ms=counts.latency_max_ms,
            settings={
                "clientPort": self.port,
                "dataDir": self._settings.directory,
                "tickTime": rules.tick_ms,
                "minSessionTimeout": rules.granted_ms(0),
                "maxSessionTimeout": rules.granted_ms(1 << 31),
            },
        )
