"""What a plain socket is sent: parts in order, ranges of files, and no waiting for the disk."""

import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from kits.broker.core_kit import frame
from kits.kernels.kernel_twins import needs_compiled
from kits.process.cold_files import make_cold
from millstream.broker.net import socket_shell
from millstream.broker.net.exchange import Exchange
from millstream.broker.net.peer import CLOSED, Cause
from millstream.broker.net.socket_shell import SocketPeer, SocketShell
from millstream.broker.requests.context import AnswerPart, RequestFacts
from millstream.broker.requests.dispatch import Dispatch
from millstream.kernels import send_file as kernel
from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import KIB, MIB
from millstream.observe.api_counters import ApiCounters
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.runtime.os_disk import OsDisk
from millstream.storage.log.reader import ReadSlice
from millstream.storage.segments.files import OpenFiles, PooledFile
from millstream.testing.sim.clock import ManualClock
from millstream.wire.api_keys import ApiKey

LARGE = 2 * MIB
SMALL = 20 * KIB
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
UNSENT_BYTES = 0x894B
"""Linux's SIOCOUTQNSD: what lies in a socket and was not given to the network."""


class HeldBackground:
    """Background work that is done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Outcome[Any]], None], str]] = []
        self.is_full = False

    def submit(
        self, work: Callable[[], Any], on_done: Callable[[Outcome[Any]], None], *, name: str
    ) -> None:
        if self.is_full:
            raise BackgroundFullError("full")
        self.jobs.append((work, on_done, name))

    def run(self) -> None:
        work, on_done, _ = self.jobs.pop(0)
        try:
            outcome = Outcome(work())
        except OSError as error:
            outcome = Outcome(None, error)
        on_done(outcome)


class Stage:
    """One shell, one connection over TCP, and files; requests are answered by the test."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.background = HeldBackground()
        self.requests: list[tuple[SocketPeer, int]] = []
        self.at_once: list[list[AnswerPart]] = []
        """Answers to the next requests, given when they are handled."""
        self.is_notified = True
        """Whether the exchange is notified of them, or finds them like answers of the core."""
        self.ended: list[Any] = []
        table = SlotTable(violation=InvariantViolated)
        dispatch = cast("Dispatch", self)
        self.later: list[Callable[[], None]] = []
        self.exchange = Exchange(
            table,
            dispatch,
            ManualClock(),
            ApiCounters(),
            self.ended.append,
            call_soon=self.later.append,
            take_ready=self.take_ready,
        )
        self.shell = SocketShell(self, self.exchange, cast("Background", self.background))
        self.files = OpenFiles(OsDisk(), open_max=8)
        self._stack = stack
        self._directory = directory
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.theirs = stack.enter_context(socket.create_connection(listening.getsockname(), 10))
        self.ours = stack.enter_context(listening.accept()[0])
        self.ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ours.setblocking(False)
        self.core = Connection(table, frame_bytes_max=MIB, in_flight_max=2)
        self.peer = self.shell.add(
            self.ours, self.core, listener="PLAINTEXT", client_host="127.0.0.1", number=1
        )

    # -- the loop's and the dispatcher's place

    def add_reader(self, fd: int, callback: Callable[..., Any], *arguments: Any) -> None:
        self.fd, self.wake = fd, callback

    def remove_reader(self, fd: int) -> None: ...

    def take_ready(self) -> list[Connection]:
        return self.shell.send_ready()

    def handle(self, peer: SocketPeer, facts: RequestFacts, _: memoryview) -> None:
        if self.at_once:
            give = peer.send_answer if self.is_notified else peer.core.answer
            give(facts.number, self.at_once.pop(0))
        else:
            self.requests.append((peer, facts.number))

    # -- steps

    def has_news(self) -> bool:
        """Whether the event loop would be woken."""
        return bool(select.select([self.fd], [], [], 0)[0])

    def step(self) -> bool:
        """What the event loop does when it is woken; whether it was."""
        if self.later:
            self.later.pop(0)()
            return True
        is_woken = self.has_news()
        if is_woken:
            self.wake()
        return is_woken

    def request(self, count: int = 1) -> None:
        self.theirs.sendall(frame(b"body", key=ApiKey.METADATA, version=8) * count)
        while not self.has_news():
            pass
        self.step()

    def answer(self, *parts: AnswerPart) -> None:
        self.request()
        peer, number = self.requests.pop(0)
        peer.send_answer(number, parts)

    def received(self, size: int) -> bytes:
        """So many bytes as the client gets them while the loop turns."""
        found = bytearray()
        while len(found) < size:
            while self.step():
                pass
            found += self.theirs.recv(min(size - len(found), 128 * KIB))
        return bytes(found)

    def read_cold(self) -> None:
        """The threads get what they read, and the loop runs, until no answer waits for the disk."""
        while self.background.jobs:
            self.background.run()
            while self.step():
                pass

    def file(self, data: bytes) -> PooledFile:
        path = self._directory / "segment"
        path.write_bytes(data)
        return self.files.file(str(path))

    def range(self, file: PooledFile, position: int, size: int) -> ReadSlice:
        file.pin()
        return ReadSlice(file, position, size)


@pytest.fixture(params=["planned", "unplanned"])
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """Where the epoll sends the rest of an answer by itself, and where it reports each event."""
    if request.param == "unplanned":
        monkeypatch.setattr(SocketShell, "plan", lambda *_, **__: False)
    with ExitStack() as stack:
        yield Stage(stack, tmp_path)


@pytest.fixture
def unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what a test can only make happen in Python."""
    monkeypatch.setattr(SocketShell, "plan", lambda *_, **__: False)


def is_pinned(file: PooledFile) -> bool:
    try:
        file.unpin()
    except InvariantViolated:
        return False
    file.pin()
    return True


@pytest.fixture(params=["sent", "read"])
def cold(request: pytest.FixtureRequest, unplanned: None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Nothing is in the page cache; the size of a range that is sent from it, or read first."""

    def not_there(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "cold")

    monkeypatch.setattr(socket_shell, "send_file", lambda *_: (0, kernel.COLD))
    monkeypatch.setattr(os, "preadv", not_there)
    return LARGE if request.param == "sent" else SMALL


# -- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_uncopied", [True, False])
def test_bytes_and_ranges_arrive_in_order(stage: Stage, is_uncopied: bool) -> None:
    stage.shell.uses_sendfile = is_uncopied
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    data = os.urandom(LARGE + 3 * SMALL)
    file = stage.file(data)
    stage.answer(
        b"head",
        stage.range(file, 7, LARGE),
        b"between",
        stage.range(file, 100, SMALL),
        stage.range(file, LARGE, SMALL),
        bytes(100_000),
        stage.range(file, 0, LARGE + SMALL),
        b"tail",
    )
    expected = b"head" + data[7 : 7 + LARGE] + b"between" + data[100 : 100 + SMALL]
    expected += data[LARGE : LARGE + SMALL] + bytes(100_000) + data[: LARGE + SMALL] + b"tail"
    assert stage.received(len(expected)) == expected
    assert not is_pinned(file)
    assert not stage.has_news()
    stage.answer(b"more")
    assert stage.received(4) == b"more"


@pytest.mark.usefixtures("unplanned")
def test_a_file_system_that_cannot_send_is_read_instead(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_shell, "send_file", lambda *_: (0, kernel.UNKNOWN))
    data = os.urandom(LARGE)
    file = stage.file(data)
    stage.answer(b"head", stage.range(file, 0, LARGE))
    assert stage.received(LARGE + 4) == b"head" + data
    assert not stage.shell.uses_sendfile


@pytest.mark.parametrize(
    ("size", "missing"),
    [(LARGE, 1), (LARGE, 5000), (LARGE, 300_001), (LARGE, LARGE), (SMALL, 1), (SMALL, SMALL)],
)
def test_a_file_shorter_than_its_range_ends_the_connection(
    stage: Stage, size: int, missing: int
) -> None:
    file = stage.file(bytes(size - missing))
    stage.answer(b"head", stage.range(file, 0, size))
    while stage.peer.state != CLOSED:
        if stage.background.jobs:
            stage.background.run()
        stage.theirs.recv(MIB)
        stage.step()
    assert stage.peer.close_cause is Cause.FAILURE
    assert not is_pinned(file)


def test_a_client_that_goes_away_is_the_cause(stage: Stage) -> None:
    file = stage.file(bytes(4 * LARGE))
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    stage.answer(stage.range(file, 0, 4 * LARGE))
    stage.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stage.theirs.close()
    while stage.peer.state != CLOSED:
        stage.step()
    assert stage.peer.close_cause is Cause.CLIENT
    assert not is_pinned(file)


@pytest.mark.usefixtures("unplanned")
def test_a_fast_client_lets_the_others_have_their_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_shell, "TURN_BYTES_MAX", 100_000)
    sizes = []

    def noted(sock: int, file: int, position: int, size: int) -> tuple[int, int]:
        sizes.append(size)
        return kernel.send_file(sock, file, position, size)

    monkeypatch.setattr(socket_shell, "send_file", noted)
    data = os.urandom(LARGE)
    stage.answer(bytes(80_000), bytes(80_000), stage.range(stage.file(data), 0, LARGE))
    assert sizes == []
    assert stage.has_news()  # it goes on with the next turn of the loop
    stage.step()
    assert sizes == [100_000]
    assert stage.received(160_000 + LARGE) == bytes(160_000) + data
    assert max(sizes) == 100_000


def half_sent(stage: Stage, *parts: AnswerPart) -> None:
    """Answer with more than the socket takes, and let the loop do what it can."""
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    stage.answer(*parts)
    while stage.step():
        pass


@needs_compiled("epoll_shell", is_used=True)  # the plain twin does call Python
@pytest.mark.parametrize("stage", ["planned"], indirect=True)
def test_nobody_is_asked_between_the_pieces_of_an_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    send_queue = SocketPeer.send_queue

    def counted(self: SocketPeer) -> bool:
        calls.append(self.core.unsent_bytes)
        return send_queue(self)

    monkeypatch.setattr(SocketPeer, "send_queue", counted)
    data = os.urandom(LARGE)
    file = stage.file(data)
    half_sent(stage, b"head", stage.range(file, 0, LARGE), b"tail", stage.range(file, 0, LARGE))
    assert stage.received(2 * LARGE + 8) == b"head" + data + b"tail" + data
    while stage.step():
        pass
    assert len(calls) == 2  # the first chunk, and when all of it was sent
    assert not is_pinned(file)


def test_a_file_that_is_cut_while_it_is_sent_ends_the_connection(stage: Stage) -> None:
    file = stage.file(bytes(2 * LARGE))
    half_sent(stage, b"head", stage.range(file, 0, 2 * LARGE))
    os.truncate(file.path, LARGE)
    found = 0
    while stage.peer.state != CLOSED:
        if stage.background.jobs:
            stage.background.run()
        found += len(stage.theirs.recv(MIB))
        while stage.step():
            pass
    while data := stage.theirs.recv(MIB):
        found += len(data)
    assert found == LARGE + 4
    assert stage.peer.close_cause is Cause.FAILURE
    assert not is_pinned(file)


def test_a_removed_file_is_sent_to_its_end(stage: Stage) -> None:
    data = os.urandom(2 * LARGE)
    file = stage.file(data)
    half_sent(stage, b"head", stage.range(file, 0, 2 * LARGE))
    os.unlink(file.path)
    file.forget()
    assert stage.received(2 * LARGE + 4) == b"head" + data
    assert not is_pinned(file)


def test_answers_stay_in_order_behind_half_a_range(stage: Stage) -> None:
    data = os.urandom(900 * KIB)
    file = stage.file(data)
    half_sent(stage, b"head", stage.range(file, 0, len(data)))
    assert is_pinned(file)
    stage.answer(b"second")
    stage.answer(stage.range(file, 0, SMALL), bytes(MIB))
    expected = b"head" + data + b"second" + data[:SMALL] + bytes(MIB)
    assert stage.received(len(expected)) == expected
    assert not is_pinned(file)
    assert not stage.has_news()


def test_closing_waits_for_the_rest_of_a_range(stage: Stage) -> None:
    data = os.urandom(LARGE)
    file = stage.file(data)
    half_sent(stage, b"head", stage.range(file, 0, LARGE))
    stage.peer.close("enough")
    assert stage.received(LARGE + 4) == b"head" + data
    while stage.step():
        pass
    assert stage.peer.state == CLOSED
    assert stage.theirs.recv(1) == b""
    assert not is_pinned(file)


def test_an_abort_drops_half_a_range(stage: Stage) -> None:
    file = stage.file(bytes(LARGE))
    half_sent(stage, b"head", stage.range(file, 0, LARGE), stage.range(file, 0, LARGE))
    stage.peer.abort("enough", Cause.STOP)
    assert not is_pinned(file)
    assert not stage.has_news()


# -- cold data ---------------------------------------------------------------------------------


def test_the_loop_sleeps_while_a_thread_reads(stage: Stage, cold: int) -> None:
    """I-34. The socket can take more all that time: events for it would keep the loop spinning."""
    data = os.urandom(cold)
    file = stage.file(data)
    stage.answer(b"head", stage.range(file, 0, cold), b"tail")
    found = b""
    while stage.background.jobs:
        assert [name for _, _, name in stage.background.jobs] == ["cold read"]
        assert not stage.has_news()
        assert not stage.later
        stage.background.run()
        while stage.step():
            pass
        while select.select([stage.theirs], [], [], 0)[0]:
            found += stage.theirs.recv(MIB)
    expected = b"head" + data + b"tail"
    assert found + stage.received(len(expected) - len(found)) == expected
    assert not is_pinned(file)


@pytest.mark.usefixtures("unplanned")
def test_the_loop_sleeps_also_after_the_socket_was_full(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the socket before, and must not any more."""
    states = [(1000, kernel.FULL), (0, kernel.COLD)]
    monkeypatch.setattr(socket_shell, "send_file", lambda *_: states.pop(0))
    file = stage.file(bytes(LARGE))
    stage.answer(stage.range(file, 0, LARGE))
    assert stage.has_news()
    stage.step()
    assert len(stage.background.jobs) == 1
    assert not stage.has_news()


def test_what_stands_before_cold_data_does_not_wait_for_it(stage: Stage, cold: int) -> None:
    stage.answer(b"head", stage.range(stage.file(bytes(cold)), 0, cold))
    assert stage.background.jobs
    (unsent,) = struct.unpack("i", fcntl.ioctl(stage.ours, UNSENT_BYTES, bytes(4)))
    assert unsent == 0
    assert stage.theirs.recv(100) == b"head"


def test_answers_stay_in_order_behind_cold_data(stage: Stage, cold: int) -> None:
    data = os.urandom(cold)
    stage.request(2)
    (peer, first), (_, second) = stage.requests
    peer.send_answer(first, [stage.range(stage.file(data), 0, cold)])
    peer.send_answer(second, [b"second"])
    assert len(stage.background.jobs) == 1
    assert not stage.has_news()
    stage.read_cold()
    assert stage.received(cold + 6) == data + b"second"


@pytest.mark.parametrize("is_notified", [True, False])
def test_a_request_during_a_cold_read_is_answered_behind_it(
    stage: Stage, cold: int, is_notified: bool
) -> None:
    """I-36. There is room for more requests meanwhile, and the socket could take their answers."""
    stage.is_notified = is_notified
    data = os.urandom(cold // 3)
    stage.answer(b"head", stage.range(stage.file(data), 0, len(data)))
    for _ in range(3):
        stage.at_once.append([b"second"])
        stage.request()
    assert not stage.has_news()
    stage.read_cold()
    assert stage.received(len(data) + 22) == b"head" + data + 3 * b"second"
    assert stage.core.is_direct


def test_a_client_that_goes_away_during_a_cold_read(stage: Stage, cold: int) -> None:
    file = stage.file(bytes(cold))
    stage.answer(b"head", stage.range(file, 0, cold))
    stage.theirs.close()
    while stage.peer.state != CLOSED:
        stage.step()
    assert is_pinned(file)  # the thread still reads from it
    stage.background.run()
    assert not is_pinned(file)
    assert stage.ended == [stage.peer]


def test_a_cold_read_that_fails_ends_the_connection(stage: Stage, cold: int) -> None:
    file = stage.file(b"")
    stage.answer(b"head", stage.range(file, 0, cold))
    stage.background.run()
    assert (stage.peer.state, stage.peer.close_cause) == (CLOSED, Cause.FAILURE)
    assert not is_pinned(file)


def test_with_too_much_background_work_the_loop_reads_itself(stage: Stage, cold: int) -> None:
    stage.background.is_full = True
    data = os.urandom(cold)
    file = stage.file(data)
    stage.answer(b"head", stage.range(file, 0, cold))
    assert stage.received(4 + cold) == b"head" + data
    assert not is_pinned(file)


def test_the_loop_reads_no_file_that_is_too_short_for_ever(stage: Stage, cold: int) -> None:
    stage.background.is_full = True
    file = stage.file(bytes(cold // 2))
    stage.answer(b"head", stage.range(file, 0, cold))
    while stage.peer.state != CLOSED:
        stage.theirs.recv(MIB)
        stage.step()
    assert stage.peer.close_cause is Cause.FAILURE
    assert not is_pinned(file)


@pytest.mark.parametrize("warm", [0, 2 * PAGE_BYTES])
def test_really_cold_data_is_read_by_a_thread(stage: Stage, warm: int) -> None:
    """A page is missing at the start or on the way, and no other answer takes its place (I-36)."""
    data = os.urandom(900 * KIB)
    file = stage.file(data)
    descriptor = file.open().descriptor
    assert descriptor is not None
    make_cold(descriptor)
    os.pread(descriptor, warm, 0)
    stage.answer(b"head", stage.range(file, 0, len(data)), b"tail")
    stage.at_once.append([b"second"])
    stage.request()
    assert len(stage.background.jobs) == 1
    found, expected = stage.received(4 + warm), b"head" + data + b"tailsecond"
    while len(found) < len(expected):
        stage.read_cold()
        stage.step()
        if select.select([stage.theirs], [], [], 0)[0]:
            found += stage.theirs.recv(MIB)
    assert found == expected


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("unplanned")
def test_an_answer_that_leaves_at_once_costs_no_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is in the output than a connection may have, for as long as it takes to send it."""
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MIB)
    watched: list[object] = []
    watch = stage.shell.watch

    def noted(core: Connection, *, reading: bool, writing: bool) -> None:
        watched.append((reading, writing))
        watch(core, reading=reading, writing=writing)

    monkeypatch.setattr(stage.shell, "watch", noted)
    monkeypatch.setattr(socket_shell, "send_file", lambda *args: (args[3], kernel.SENT))
    file = stage.file(bytes(LARGE))
    for _ in range(3):
        stage.at_once.append([b"head", stage.range(file, 0, LARGE)])
        stage.request()
        assert watched == []
        assert stage.core.is_direct
        assert stage.theirs.recv(100) == b"head"
    assert not is_pinned(file)


@pytest.mark.parametrize("is_notified", [True, False])
def test_who_is_still_blocked_after_an_answer_is_not_read(stage: Stage, is_notified: bool) -> None:
    """I-37. Two requests may be in flight: the third and what follows stay where they are."""
    stage.is_notified = is_notified
    stage.at_once.append([b"first"])
    stage.request(3)
    assert stage.theirs.recv(100) == b"first"
    assert len(stage.requests) == 2
    stage.theirs.sendall(frame(b"body", key=ApiKey.METADATA, version=8))
    for _ in range(100):
        assert not stage.has_news()
    for peer, number in list(stage.requests):
        peer.send_answer(number, [b"late"])
    while len(stage.requests) < 3:
        stage.step()
    assert stage.received(8) == b"latelate"


def test_who_does_not_take_an_answer_is_not_read(stage: Stage) -> None:
    """I-37. The pause that was left out comes when the socket is full."""
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    file = stage.file(bytes(16 * MIB))
    stage.at_once.append([stage.range(file, 0, 16 * MIB)])
    stage.request(2)
    while stage.step():
        pass
    stage.theirs.sendall(frame(b"body", key=ApiKey.METADATA, version=8))
    for _ in range(100):
        assert not stage.has_news()
    assert not stage.requests
    stage.received(16 * MIB)
    while len(stage.requests) < 2:
        stage.step()


@pytest.mark.usefixtures("cold")
def test_who_waits_for_the_disk_is_not_read(stage: Stage) -> None:
    """Most of the answer has left and there would be room again, but not all of it has."""
    stage.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MIB)
    stage.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * MIB)
    stage.at_once.append([bytes(MIB), stage.range(stage.file(bytes(SMALL)), 0, SMALL)])
    stage.request()
    while not stage.background.jobs:
        stage.received(KIB)
    stage.theirs.sendall(frame(b"body", key=ApiKey.METADATA, version=8))
    for _ in range(100):
        assert not stage.has_news()
