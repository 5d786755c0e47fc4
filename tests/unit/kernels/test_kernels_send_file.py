"""Ranges of files to sockets: only what is in the page cache, and why it stopped."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from kits.kernels.kernel_twins import twins
from kits.process.cold_files import make_cold
from millstream.model.limits import KIB, MIB

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SIZE = 3 * MIB + 1234

kernels = pytest.mark.parametrize("kernel", twins("send_file"))


class Ends(NamedTuple):
    """A connection, and a file of random bytes that is in the page cache."""

    ours: socket.socket
    theirs: socket.socket
    file: int
    data: bytes

    def received(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self.theirs.recv(MIB)
        return found


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    data = os.urandom(SIZE)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        theirs = stack.enter_context(socket.create_connection(listening.getsockname(), 10))
        ours = stack.enter_context(listening.accept()[0])
        ours.setblocking(False)
        (tmp_path / "segment").write_bytes(data)
        file = os.open(tmp_path / "segment", os.O_RDWR)
        stack.callback(os.close, file)
        yield Ends(ours, theirs, file, data)


@kernels
@pytest.mark.parametrize("position", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, MIB + 77])
@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES, PAGE_BYTES + 2, 70_000])
def test_a_range_arrives_as_it_is(kernel: ModuleType, ends: Ends, position: int, size: int) -> None:
    found = kernel.send_file(ends.ours.fileno(), ends.file, position, size)
    assert found == (size, kernel.SENT)
    assert ends.received(size) == ends.data[position : position + size]


@kernels
def test_a_full_socket_ends_it_and_it_goes_on_from_there(kernel: ModuleType, ends: Ends) -> None:
    ends.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    sent, position, states = b"", 5, set()
    while len(sent) < SIZE - 5:
        left = SIZE - position - len(sent)
        size, state = kernel.send_file(ends.ours.fileno(), ends.file, position + len(sent), left)
        states.add(state)
        assert (size == left) == (state == kernel.SENT)
        sent += ends.received(size)
    assert sent == ends.data[5:]
    assert states <= {kernel.FULL, kernel.SENT}
    # What was sent goes on to the other end's buffer by and by, and makes room once more.
    while (last := kernel.send_file(ends.ours.fileno(), ends.file, 0, SIZE))[0]:
        pass
    assert last == (0, kernel.FULL)


@kernels
def test_what_is_not_in_the_page_cache_is_not_sent(kernel: ModuleType, ends: Ends) -> None:
    """I-34: sendfile would wait for the disk, and every connection with it."""
    make_cold(ends.file, position=2 * MIB)
    ours = ends.ours.fileno()
    assert kernel.send_file(ours, ends.file, 0, SIZE) == (0, kernel.COLD)
    os.pread(ends.file, 16 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert kernel.send_file(ours, ends.file, 0, SIZE) == (0, kernel.COLD)
    at = 4 * PAGE_BYTES + 100
    size, state = kernel.send_file(ours, ends.file, at, SIZE - at)
    assert (size, state) == (16 * PAGE_BYTES - 100, kernel.COLD)
    assert ends.received(size) == ends.data[at : at + size]
    assert kernel.send_file(ours, ends.file, at, 9) == (9, kernel.SENT)


@kernels
def test_a_file_that_is_too_short_is_told(kernel: ModuleType, ends: Ends) -> None:
    os.ftruncate(ends.file, PAGE_BYTES + 10)
    ours, size, states = ends.ours.fileno(), 0, []
    for _ in range(3):
        done, state = kernel.send_file(ours, ends.file, size, 2 * PAGE_BYTES - size)
        size += done
        states.append(state)
    assert size == PAGE_BYTES + 10
    assert states[1:] == [kernel.SHORT] * 2
    # Beyond the last page there may be none in the cache; a read of it then finds the end.
    done, state = kernel.send_file(ours, ends.file, 4 * PAGE_BYTES, 1)
    assert done == 0
    assert state in (kernel.COLD, kernel.SHORT)


@kernels
def test_what_has_no_pages_is_unknown(kernel: ModuleType, ends: Ends) -> None:
    reading, writing = os.pipe()
    try:
        assert kernel.send_file(ends.ours.fileno(), reading, 0, 10) == (0, kernel.UNKNOWN)
    finally:
        os.close(reading)
        os.close(writing)


@kernels
def test_errors_of_the_socket_are_raised(kernel: ModuleType, ends: Ends) -> None:
    ends.ours.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        kernel.send_file(ends.ours.fileno(), ends.file, 0, 10)
    for position, size in ((-1, 10), (0, -1)):
        with pytest.raises(ValueError, match="bytes from byte"):
            kernel.send_file(ends.ours.fileno(), ends.file, position, size)
