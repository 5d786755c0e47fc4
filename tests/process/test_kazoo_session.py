"""The adapter where it differs from kazoo: hung loops, second sessions, stale requests."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.protocol.states import KeeperState

from kits.coordination.coordination_kit import CREDENTIALS, SHORT_SESSION_MS
from kits.process.keeper_process import KeeperProcess, keeper_process
from kits.process.lossy_proxy import LossyProxy
from kits.process.waiting_for import until
from millstream.coordination import errors
from millstream.coordination.kazoo_client import (
    PINGS_PER_TIMEOUT,
    Access,
    LoopHandler,
    NotSent,
    SessionClient,
)
from millstream.coordination.kazoo_coordination import KazooCoordination
from millstream.coordination.kazoo_session import KazooSession
from millstream.coordination.port import Create, NodeKind, SessionState, WatchEvent
from millstream.runtime.clock import SystemClock
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.peers.zookeeper import ZooKeeperServer, four_letters, zookeeper_servers

WAIT_S = 20.0


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    with keeper_process(tmp_path_factory.mktemp("keeper")) as running:
        yield running


async def session_of(place: str, timeout_ms: int = 6000) -> KazooSession:
    coordination = KazooCoordination(place, SystemClock(), Access(CREDENTIALS))
    return await coordination.connect(timeout_ms=timeout_ms, wait_s=WAIT_S)


async def eventually(condition: object, what: str) -> None:
    assert callable(condition)
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


def figure(keeper: KeeperProcess, name: str) -> int:
    lines = four_letters(keeper.port, b"mntr").splitlines()
    return int(next(line.split("\t")[1] for line in lines if line.startswith(f"zk_{name}\t")))


def last_zxid(keeper: KeeperProcess) -> str:
    lines = four_letters(keeper.port, b"srvr").splitlines()
    return next(line for line in lines if line.startswith("Zxid: "))


def hang_until(condition: Callable[[], bool]) -> None:
    """Keep the loop from running anything else."""
    until(condition, "the watchdog acts", timeout_s=60)


def test_a_hung_loop_loses_its_session_although_kazoo_goes_on_pinging(
    keeper: KeeperProcess,
) -> None:
    """I-18. The node is gone, and the state shows it before anything else can run on the loop."""

    async def story() -> None:
        hung = await session_of(keeper.address, SHORT_SESSION_MS)
        states: list[SessionState] = []
        hung.add_listener(states.append)
        await hung.create("/hung", kind=NodeKind.EPHEMERAL)
        hang_until(lambda: hung.state is SessionState.LOST)
        assert states == []
        other = await session_of(keeper.address)
        assert await other.exists("/hung") is None
        with pytest.raises(errors.SessionLost, match="hangs"):
            await hung.get("/")
        await eventually(lambda: states == [SessionState.LOST], "the listener is told, once")
        await hung.close()
        await other.close()

    asyncio.run(story())


def test_a_loop_that_is_only_slow_keeps_its_session(keeper: KeeperProcess) -> None:
    async def story() -> None:
        slow = await session_of(keeper.address, SHORT_SESSION_MS)
        await slow.create("/slow", kind=NodeKind.EPHEMERAL)
        for _ in range(6):
            time.sleep(0.1 * SHORT_SESSION_MS / 1000)  # noqa: ASYNC251 - the loop is slow
            await asyncio.sleep(0.05)
        assert slow.state is SessionState.CONNECTED
        assert await slow.exists("/slow") is not None
        await slow.close()

    asyncio.run(story())


def test_an_idle_session_pings_so_often_that_a_pause_of_most_of_its_timeout_is_survived(
    keeper: KeeperProcess,
) -> None:
    """Kazoo's client would ping three times in a timeout."""

    async def story() -> None:
        session = await session_of(keeper.address, SHORT_SESSION_MS)
        received, begin_s = figure(keeper, "packets_received"), time.monotonic()
        await eventually(
            lambda: figure(keeper, "packets_received") >= received + 3 * PINGS_PER_TIMEOUT, "pings"
        )
        assert time.monotonic() - begin_s < 5 * SHORT_SESSION_MS / 1000
        assert session.state is SessionState.CONNECTED
        await session.close()

    asyncio.run(story())


def test_after_a_loss_no_other_session_is_opened(keeper: KeeperProcess) -> None:
    """Kazoo's client would open one by itself."""

    async def story(proxy: LossyProxy) -> None:
        before = figure(keeper, "global_sessions")
        lost = await session_of(proxy.address, SHORT_SESSION_MS)
        assert figure(keeper, "global_sessions") == before + 1
        proxy._broker = ("127.0.0.1", 1)
        for one in list(proxy._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        await eventually(lambda: figure(keeper, "global_sessions") == before, "it expires")
        other = await session_of(keeper.address)
        await other.sync("/")  # answered when all before it is durable, and counted
        changes = last_zxid(keeper)
        proxy._broker = ("127.0.0.1", keeper.port)
        with pytest.raises(errors.SessionLost):
            await lost.connected()
        await eventually(lambda: not lost._thread.is_alive(), "its thread ends by itself")
        assert last_zxid(keeper) == changes  # opening a session would have been one
        await lost.close()
        await other.close()

    with LossyProxy(("127.0.0.1", keeper.port)) as proxy:
        asyncio.run(story(proxy))


def test_a_request_without_a_connection_is_not_kept_for_later() -> None:
    """The loop does not know yet that the connection is gone, so kazoo gets the request anyway."""

    async def story() -> None:
        handler = LoopHandler(asyncio.get_running_loop(), SystemClock(), connect_timeout_s=1.0)
        client = SessionClient("127.0.0.1:1", handler, timeout_ms=1000)
        ours, theirs = socket.socketpair()
        client._connection._write_sock = ours
        client._state = KeeperState.CONNECTING
        result = client.create_async("/late")
        await eventually(result.ready, "it fails at once")
        assert isinstance(result.exception, NotSent)
        assert not client._queue
        client._state = KeeperState.CONNECTED
        client.create_async("/now")
        assert len(client._queue) == 1
        ours.close()
        theirs.close()

    asyncio.run(story())


def test_without_a_server_connecting_ends_in_time_and_leaves_no_thread() -> None:
    async def story() -> None:
        coordination = KazooCoordination("127.0.0.1:1", SystemClock())
        with pytest.raises(errors.CannotConnect, match=r"127\.0\.0\.1:1"):
            await coordination.connect(timeout_ms=1000, wait_s=0.5)

    before = set(threading.enumerate())  # some of which may be about to end
    asyncio.run(story())
    until(lambda: set(threading.enumerate()) <= before, "its threads end")


def test_everything_may_be_below_a_node_that_is_made_first(keeper: KeeperProcess) -> None:
    async def story() -> None:
        coordination = KazooCoordination(
            f"{keeper.address}/some/where", SystemClock(), Access(CREDENTIALS)
        )
        inside = await coordination.connect(timeout_ms=6000, wait_s=WAIT_S)
        outside = await session_of(keeper.address)
        created = await inside.create("/n-", kind=NodeKind.PERSISTENT_SEQUENTIAL)
        assert created.path == "/n-0000000000"
        seen: list[WatchEvent] = []
        await inside.get("/n-0000000000", watch=seen.append)
        await outside.set("/some/where/n-0000000000", b"x", version=0)
        await eventually(lambda: seen, "the watch is called")
        assert seen[0].path == "/n-0000000000"
        assert await inside.multi([Create(path="/m")]) == ["/m"]
        assert (await outside.children("/some/where")).names == ["m", "n-0000000000"]
        again = await coordination.connect(timeout_ms=6000, wait_s=WAIT_S)
        for session in (inside, outside, again):
            await session.close()

    asyncio.run(story())


def test_closing_ends_the_session_at_once_and_can_be_repeated(keeper: KeeperProcess) -> None:
    async def story() -> None:
        before = figure(keeper, "global_sessions")
        session = await session_of(keeper.address)
        states: list[SessionState] = []
        session.add_listener(states.append)
        await session.close()
        await session.close()
        assert figure(keeper, "global_sessions") == before
        assert states == [SessionState.LOST]

    before = set(threading.enumerate())  # some of which may be about to end
    asyncio.run(story())
    until(lambda: set(threading.enumerate()) <= before, "its threads end")


def test_a_keeper_that_restarts_suspends_and_nothing_else(tmp_path: Path) -> None:
    async def story(keeper: KeeperProcess) -> None:
        session = await session_of(keeper.address)
        await session.create("/mine", b"1", kind=NodeKind.EPHEMERAL)
        states: list[SessionState] = []
        session.add_listener(states.append)
        keeper.kill()
        await eventually(lambda: states == [SessionState.SUSPENDED], "suspended")
        with keeper_process(tmp_path, port=keeper.port):
            await session.connected()
            assert (await session.get("/mine")).stat.owner == session.session_id
            assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
            await session.close()

    with keeper_process(tmp_path) as keeper:
        asyncio.run(story(keeper))


def test_a_keeper_that_was_stopped_does_not_blame_its_clients(tmp_path: Path) -> None:
    """SIGSTOP for longer than the session's time-out: no heartbeat could have arrived."""

    async def story(keeper: KeeperProcess) -> None:
        session = await session_of(keeper.address, SHORT_SESSION_MS)
        await session.create("/mine", kind=NodeKind.EPHEMERAL)
        states: list[SessionState] = []
        session.add_listener(states.append)
        keeper.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * SHORT_SESSION_MS / 1000)
        keeper.process.send_signal(signal.SIGCONT)
        await eventually(lambda: SessionState.SUSPENDED in states, "the client notices")
        await session.connected()
        stat = await session.exists("/mine")
        assert stat is not None
        assert stat.owner == session.session_id
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await session.close()

    with keeper_process(tmp_path) as keeper:
        asyncio.run(story(keeper))


@pytest.mark.slow
def test_a_session_moves_to_another_server_of_an_ensemble(tmp_path: Path) -> None:
    """The one it is connected to is killed, then a majority: suspended, and then on as before."""
    require_runtime("java")

    async def story(servers: list[ZooKeeperServer]) -> None:
        session = await session_of(",".join(server.address for server in servers), 9000)
        await session.create("/mine", kind=NodeKind.EPHEMERAL)
        states: list[SessionState] = []
        session.add_listener(states.append)
        session_id = session.session_id
        peer = session._client._connection._socket.getpeername()[1]
        used = next(server for server in servers if server.port == peer)
        used.kill()
        await eventually(lambda: SessionState.SUSPENDED in states, "suspended")
        await session.connected()
        assert (await session.set("/mine", b"1", version=0)).owner == session_id
        other = next(server for server in servers if server is not used)
        other.kill()
        await eventually(lambda: session.state is SessionState.SUSPENDED, "no majority")
        with pytest.raises(errors.ConnectionLost) as lost:
            await session.set("/mine", b"2", version=1)
        assert not lost.value.is_in_doubt
        used.start()
        await session.connected()
        data, stat = await session.get("/mine")
        assert (data, stat.owner) == (b"1", session_id)
        assert SessionState.LOST not in states
        await session.close()

    with zookeeper_servers(tmp_path, 3) as servers:
        asyncio.run(story(servers))


def test_an_answer_of_an_absurd_length_is_not_believed() -> None:
    """Kazoo would wait for, and keep, two gigabytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    has_hung_up = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"\x7f\xff\xff\xff" + bytes(1000))
                    with suppress(ConnectionResetError):
                        connection.recv(1)
                    has_hung_up.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    async def story() -> None:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        session = KazooSession(place, SystemClock(), timeout_ms=60_000)
        await eventually(has_hung_up.is_set, "the client hangs up")
        assert session.state is SessionState.SUSPENDED
        await session.close()

    asyncio.run(story())
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)
