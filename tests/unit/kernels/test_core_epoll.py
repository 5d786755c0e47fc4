"""The system calls around the core, on real sockets: what is read, reported and sent."""

import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kits.broker.core_kit import (
    TWINS,
    Client,
    Core,
    batch,
    frame,
    frames_of,
    produce_frame,
    read_answer,
)
from kits.kernels.kernel_twins import compiled, plain
from kits.process.cold_files import make_cold
from millstream.kernels.errors import FrameError
from millstream.model.limits import KIB
from millstream.testing.wait_until import wait_until
from millstream.wire.api_keys import ApiKey

REQUESTS, WRITABLE, ENDED = 1, 2, 4
CONNECTIONS_READY, LOOP_READY = 1, 2
NOW_S = 12.5


class Sockets:
    """A core whose clients come over socket pairs."""

    def __init__(self, core: Core, stack: ExitStack) -> None:
        is_plain = "_plain" in core.twin.slots.__name__
        module = (plain if is_plain else compiled)("epoll_shell")
        assert module is not None
        self.core = core
        self.stack = stack
        self.shell = module.EpollShell(core.table, unread_bytes_threshold=100 * KIB)
        stack.callback(self.shell.close)

    def connect(self) -> tuple[socket.socket, Client]:
        ours, theirs = socket.socketpair()
        self.stack.enter_context(ours)
        self.stack.enter_context(theirs)
        ours.setblocking(False)
        client = self.core.connect()
        client.connection.owner = ours
        self.shell.add(client.connection, ours.fileno())
        return theirs, client

    def read_ready(self) -> list[tuple[object, int, int]]:
        found: list[tuple[object, int, int]] = self.shell.read_ready(
            NOW_S, self.core.clock.wall_ms()
        )
        return found


@pytest.fixture(params=TWINS)
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(Core(request.param), stack)


def other(body: bytes = b"body") -> bytes:
    return frame(body, key=ApiKey.METADATA, version=8)


def test_plain_requests_need_nothing_but_a_commit(sockets: Sockets) -> None:
    pairs = [sockets.connect() for _ in range(4)]
    for number, (theirs, _) in enumerate(pairs):
        theirs.sendall(produce_frame([(0, batch(b"%d" % number))], correlation_id=number) * 2)
    assert sockets.read_ready() == []
    assert sockets.core.table.staged == 8
    assert sockets.shell.send_ready() == []
    sockets.core.write_staged()
    assert sockets.shell.send_ready() == []
    for number, (theirs, client) in enumerate(pairs):
        answers = [read_answer(one, 9) for one in frames_of(theirs.recv(4096))]
        assert [one.correlation_id for one in answers] == [number] * 2
        assert client.connection.output_bytes == client.connection.in_flight == 0
        assert client.connection.last_active_s == NOW_S
    assert sockets.read_ready() == []


def test_its_descriptor_tells_a_loop_that_something_came(sockets: Sockets) -> None:
    theirs, _ = sockets.connect()
    with select.epoll() as loop:
        loop.register(sockets.shell.fileno(), select.EPOLLIN)
        assert loop.poll(0) == []
        theirs.sendall(produce_frame([(0, batch())]))
        assert loop.poll(0) == [(sockets.shell.fileno(), select.EPOLLIN)]
        sockets.read_ready()
        assert loop.poll(0) == []


def test_other_requests_are_told_in_order(sockets: Sockets) -> None:
    """What came before is staged, what came after is not yet walked."""
    theirs, client = sockets.connect()
    theirs.sendall(produce_frame([(0, batch())]) + other() + produce_frame([(0, batch())]))
    assert sockets.read_ready() == [(client.connection, REQUESTS, 0)]
    assert sockets.core.table.staged == 1
    assert client.connection.next_request(sockets.core.clock.wall_ms())[:2] == (1, 3)
    assert client.connection.next_request(sockets.core.clock.wall_ms()) is None
    assert sockets.core.table.staged == 2


def test_bytes_that_are_no_request_are_told(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    theirs.sendall(produce_frame([(0, batch())]) + b"\xff" * 8)
    assert sockets.read_ready() == [(client.connection, REQUESTS, 0)]
    with pytest.raises(FrameError):
        client.connection.next_request(0)


def test_a_blocked_connection_and_a_large_one_are_told(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    theirs.sendall((300 * KIB).to_bytes(4, "big") + bytes(8))
    assert sockets.read_ready() == []
    theirs.sendall(bytes(150 * KIB))
    reported = []
    while client.connection.unread_bytes < 150 * KIB + 12:
        reported += sockets.read_ready()
    assert reported
    assert set(reported) == {(client.connection, REQUESTS, 0)}
    theirs, client = sockets.connect()
    client.connection.unsent_bytes = 2**30
    theirs.sendall(produce_frame([(0, batch())]))
    assert sockets.read_ready() == [(client.connection, REQUESTS, 0)]


def test_the_end_of_a_client_is_told(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    theirs.sendall(produce_frame([(0, batch())]))
    theirs.close()
    assert sockets.read_ready() == []
    assert sockets.read_ready() == [(client.connection, ENDED, 0)]
    assert sockets.core.table.staged == 1


def test_a_paused_connection_is_not_read_but_its_end_is_told(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    sockets.shell.watch(client.connection, reading=False, writing=False)
    theirs.sendall(other())
    assert sockets.read_ready() == []
    theirs.close()
    assert sockets.read_ready() == [(client.connection, ENDED, 0)]
    sockets.shell.watch(client.connection, reading=True, writing=False)
    assert sockets.read_ready() == [(client.connection, REQUESTS, 0)]


def test_writable_is_told_when_asked_for(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    sockets.shell.watch(client.connection, reading=True, writing=True)
    assert sockets.read_ready() == [(client.connection, WRITABLE, 0)]
    theirs.sendall(other())
    assert sockets.read_ready() == [(client.connection, WRITABLE | REQUESTS, 0)]


def test_a_forgotten_connection_is_left_alone(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    theirs.sendall(other())
    sockets.shell.forget(client.connection)
    assert sockets.read_ready() == []
    assert not client.connection.is_direct
    with pytest.raises((OSError, KeyError)):
        sockets.shell.watch(client.connection, reading=True, writing=False)


def send_requests(sockets: Sockets, theirs: socket.socket, client: Client, count: int = 1) -> None:
    theirs.sendall(other() * count)
    assert sockets.read_ready() == [(client.connection, REQUESTS, 0)]
    assert len(client.requests()) == count


def test_what_is_not_small_or_not_direct_is_left_to_python(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    send_requests(sockets, theirs, client, 3)
    client.connection.answer(0, [b"small", large := bytes(100_000)])
    assert sockets.shell.send_ready() == [client.connection]
    assert [bytes(one) for one in client.connection.take_output()] == [b"small", large]
    client.connection.is_direct = False
    client.connection.answer(1, [b"queued"])
    assert sockets.shell.send_ready() == [client.connection]
    assert b"".join(client.connection.take_output()) == b"queued"
    client.connection.is_direct = True
    client.connection.answer(2, [b"direct"])
    assert sockets.shell.send_ready() == []
    assert theirs.recv(100) == b"direct"


def test_what_the_socket_does_not_take_stays_in_order(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    client.connection.owner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    send_requests(sockets, theirs, client, 7)
    sent = b"".join(b"%05d" % number for number in range(11_200))
    for number in range(7):
        client.connection.answer(number, [sent[number * 8000 : (number + 1) * 8000]])
    assert sockets.shell.send_ready() == [client.connection]
    assert 0 < client.connection.output_bytes < len(sent), "the socket took all or nothing"
    rest = b"".join(client.connection.take_output())
    assert client.connection.output_bytes == 0
    assert theirs.recv(len(sent)) + rest == sent


def test_a_failed_send_is_left_to_python(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    send_requests(sockets, theirs, client)
    theirs.close()
    client.connection.answer(0, [b"too late"])
    assert sockets.shell.send_ready() == [client.connection]
    with pytest.raises(OSError, match="Broken pipe") as caught:
        client.connection.owner.send(b"".join(client.connection.take_output()))
    assert caught.value.errno == errno.EPIPE


def test_a_reset_is_told_with_its_number(sockets: Sockets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with ours:
            ours.setblocking(False)
            client = sockets.core.connect()
            sockets.shell.add(client.connection, ours.fileno())
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            theirs.close()
            assert sockets.read_ready() == [(client.connection, ENDED, errno.ECONNRESET)]
            sockets.shell.forget(client.connection)


# -- waiting in a loop's place


def test_a_wait_tells_whose_it_is(sockets: Sockets) -> None:
    theirs, _ = sockets.connect()
    ours, other_end = socket.socketpair()
    with ours, other_end, select.epoll() as loop:
        loop.register(ours, select.EPOLLIN)
        sockets.shell.watch_loop(loop.fileno())
        assert sockets.shell.wait(0) == sockets.shell.wait(1) == 0
        theirs.sendall(produce_frame([(0, batch())]))
        assert sockets.shell.wait(-1) == CONNECTIONS_READY
        other_end.send(b"x")
        assert sockets.shell.wait(-1) == CONNECTIONS_READY | LOOP_READY
        assert sockets.read_ready() == []
        assert sockets.core.table.staged == 1
        assert sockets.shell.wait(-1) == LOOP_READY
        assert sockets.read_ready() == []  # the loop's is none of ours


def test_what_a_wait_found_is_read_by_the_next_wake_up(sockets: Sockets) -> None:
    pairs = [sockets.connect() for _ in range(3)]
    for theirs, _ in pairs[:2]:
        theirs.sendall(other())
    assert sockets.shell.wait(-1) == CONNECTIONS_READY
    pairs[2][0].sendall(other())
    reported = [connection for connection, flags, _ in sockets.read_ready() if flags == REQUESTS]
    assert reported == [client.connection for _, client in pairs[:2]]
    assert [one[0] for one in sockets.read_ready()] == [pairs[2][1].connection]


def test_a_wait_that_was_not_followed_by_a_wake_up_loses_nothing(sockets: Sockets) -> None:
    """What handled it failed before it came to that; meanwhile the connection may be gone."""
    pairs = [sockets.connect() for _ in range(2)]
    for theirs, _ in pairs:
        theirs.sendall(other())
    assert sockets.shell.wait(-1) == CONNECTIONS_READY
    sockets.shell.forget(pairs[0][1].connection)
    assert [one[0] for one in sockets.read_ready()] == [pairs[1][1].connection]
    pairs[1][0].sendall(other())
    assert sockets.shell.wait(-1) == sockets.shell.wait(-1) == CONNECTIONS_READY


def test_other_threads_run_during_a_wait(sockets: Sockets) -> None:
    theirs, _ = sockets.connect()
    thread = threading.Timer(0.02, theirs.sendall, [other()])
    thread.start()
    assert sockets.shell.wait(20_000) == CONNECTIONS_READY
    thread.join()


def test_a_signal_ends_a_wait(sockets: Sockets) -> None:
    """Its handler runs when the loop is back in Python, and may have something for it."""
    seen = []
    former = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    main = threading.get_ident()
    thread = threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGUSR1])
    thread.start()
    try:
        assert sockets.shell.wait(0) == 0
        start_s = time.monotonic()
        while not seen:  # the plain twin goes on after the handler, as Python's calls do
            assert sockets.shell.wait(200) == 0
        assert time.monotonic() - start_s < 10
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, former)


def test_waits_for_nothing_cost_nothing_even_after_a_quick_client(sockets: Sockets) -> None:
    """It may poll briefly before it sleeps, but only as long as that brings something."""
    theirs, ours = sockets.connect()
    frames = threading.Semaphore(0)

    def client() -> None:
        for _ in range(300):
            frames.acquire()
            theirs.sendall(other())

    thread = threading.Thread(target=client)
    thread.start()
    for _ in range(300):
        frames.release()
        assert sockets.shell.wait(20_000) == CONNECTIONS_READY
        sockets.read_ready()
        ours.requests()
    thread.join()
    used_s = time.thread_time()
    for _ in range(10):
        assert sockets.shell.wait(10) == 0
    assert time.thread_time() - used_s < 0.02


# -- what leaves by itself

COMPILED = TWINS[:1]


@pytest.mark.parametrize("sockets", COMPILED, indirect=True)
def test_a_wait_goes_on_while_planned_output_leaves(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    connection, shell = client.connection, sockets.shell
    data = bytes(range(256)) * 16 * KIB
    assert shell.plan(connection, [(data, -1, 0, len(data))], skip=100, is_all=True)
    shell.watch(connection, reading=True, writing=True)
    assert shell.wait(20) == 0  # the client does not read
    found = bytearray()

    def read() -> None:
        while len(found) < len(data) - 100:
            found.extend(theirs.recv(100 * KIB))

    reader = threading.Thread(target=read)
    reader.start()
    assert shell.wait(20_000) == CONNECTIONS_READY
    assert sockets.read_ready() == [(connection, WRITABLE, 0)]
    reader.join()
    assert bytes(found) == data[100:]
    assert shell.take_planned(connection) == len(data) - 100
    assert shell.take_planned(connection) == 0


@pytest.mark.parametrize("sockets", COMPILED, indirect=True)
def test_planned_output_does_not_make_a_wait_longer(sockets: Sockets) -> None:
    """A client that takes its answer all the time must not keep the loop's timers waiting."""
    theirs, client = sockets.connect()
    connection, shell = client.connection, sockets.shell
    data = bytes(64 * 1024 * KIB)
    assert shell.plan(connection, [(data, -1, 0, len(data))], skip=0, is_all=True)
    shell.watch(connection, reading=True, writing=True)

    def read() -> None:
        while theirs.recv(100 * KIB):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert shell.wait(1) == 0
        assert 0 < shell.take_planned(connection) < len(data)
    finally:
        connection.owner.shutdown(socket.SHUT_RDWR)
        reader.join()


@pytest.mark.parametrize("sockets", COMPILED, indirect=True)
def test_a_request_is_told_while_planned_output_waits(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    connection, shell = client.connection, sockets.shell
    data = bytes(4096 * KIB)
    assert shell.plan(connection, [(data, -1, 0, len(data))], skip=0, is_all=True)
    shell.watch(connection, reading=True, writing=True)
    theirs.sendall(other())
    assert shell.wait(20_000) == CONNECTIONS_READY
    assert sockets.read_ready() == [(connection, REQUESTS, 0)]
    shell.forget(connection)
    assert shell.take_planned(connection) == 0


def told_when_taken(sockets: Sockets, theirs: socket.socket, connection: object) -> bytes:
    """What a client gets until Python has to take over the plan."""
    found = bytearray()
    theirs.setblocking(False)
    while not sockets.shell.wait(0):
        with suppress(BlockingIOError):
            found += theirs.recv(100 * KIB)
    assert sockets.read_ready() == [(connection, WRITABLE, 0)]
    with suppress(BlockingIOError):
        while more := theirs.recv(100 * KIB):
            found += more
    return bytes(found)


@pytest.mark.parametrize("sockets", COMPILED, indirect=True)
@pytest.mark.parametrize("fault", ["cold", "short", "no file"])
def test_a_plan_ends_where_somebody_has_to_look(
    sockets: Sockets, tmp_path: Path, fault: str
) -> None:
    """A page that is not in the cache, a file that was cut, one that cannot be read: what was
    sent before is reported, and nothing after it was sent.
    """
    theirs, client = sockets.connect()
    data = bytes(range(256)) * 4 * KIB  # more than the socket takes at once
    path = tmp_path / "range"
    path.write_bytes(data)
    with path.open("r+b") as file, path.open("ab") as unreadable:
        if fault == "short":
            os.truncate(path, len(data) - 4 * KIB)
        if fault == "cold":
            make_cold(file.fileno())
            os.preadv(file.fileno(), [bytearray(len(data) // 2)], 0)
        second = (None, unreadable.fileno() if fault == "no file" else file.fileno(), 0, len(data))
        first = (data, -1, 0, len(data))
        shell, connection = sockets.shell, client.connection
        assert shell.plan(connection, [first, second, (b"end", -1, 0, 3)], skip=0, is_all=True)
        shell.watch(connection, reading=True, writing=True)
        found = told_when_taken(sockets, theirs, connection)
        assert shell.take_planned(connection) == len(found)
    assert found == (data + data)[: len(found)]
    behind = len(found) - len(data)
    ends = {"cold": range(len(data) // 2, len(data)), "short": [len(data) - 4 * KIB]}
    assert behind in ends.get(fault, [0])


@pytest.mark.parametrize("sockets", COMPILED, indirect=True)
def test_a_plan_must_add_up(sockets: Sockets) -> None:
    _, client = sockets.connect()
    plan = sockets.shell.plan
    for parts, skip in [
        ([], 0),
        ([(b"abc", -1, 0, 4)], 0),
        ([(None, -1, 0, 4)], 0),
        ([(None, 3, -1, 4)], 0),
        ([(None, 3, 0, -4)], 0),
        ([(b"abc", -1, 0, 3)], 4),
        ([(b"abc", -1, 0, 3)], -1),
    ]:
        with pytest.raises(ValueError, match="bytes"):
            plan(client.connection, parts, skip=skip, is_all=True)


# -- unfinished requests -------------------------------------------------------------------------

MIB = 1024 * KIB
CLAIMED = (64 * MIB).to_bytes(4, "big")


def begin_large(sockets: Sockets) -> tuple[socket.socket, Client]:
    """A connection that has sent some of a very large request."""
    theirs, client = sockets.connect()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    theirs.setblocking(False)
    theirs.send(CLAIMED)
    while client.connection.unread_bytes < 512 * KIB:
        with suppress(BlockingIOError):
            theirs.send(bytes(64 * KIB))
        sockets.read_ready()
    return theirs, client


def test_many_large_requests_share_what_one_iteration_reads(sockets: Sockets) -> None:
    """What is read and moved for them takes time in which no other client is served."""
    pairs = [begin_large(sockets) for _ in range(20)]
    before = [client.connection.unread_bytes for _, client in pairs]
    for _ in range(200):
        for theirs, _ in pairs:
            with suppress(BlockingIOError):
                theirs.send(bytes(128 * KIB))
        small, client = sockets.connect()
        small.sendall(other())
        had = sum(one.connection.unread_bytes for _, one in pairs)
        found = sockets.read_ready()
        assert (client.connection, REQUESTS, 0) in found, "who has little to read waits for nothing"
        grown = sum(one.connection.unread_bytes for _, one in pairs) - had
        assert grown <= 3 * MIB
        sockets.shell.forget(client.connection)
        after = [client.connection.unread_bytes for _, client in pairs]
        if all(now > then for now, then in zip(after, before, strict=True)):
            break
    else:
        pytest.fail("some were never read from")


def test_a_large_request_alone_arrives_whole(sockets: Sockets) -> None:
    theirs, client = sockets.connect()
    writer = threading.Thread(target=theirs.sendall, args=(other(bytes(3 * MIB)),), daemon=True)
    writer.start()

    def is_there() -> bool:
        sockets.read_ready()
        return bool(client.connection.has_request)

    wait_until(is_there, "the request is whole", timeout_s=30.0, pause_s=0.0)
    request = client.connection.next_request(sockets.core.clock.wall_ms())
    assert len(request[-1]) == 3 * MIB
    writer.join()
