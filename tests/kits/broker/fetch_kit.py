"""What the tests of Fetch share: a broker's data plane, and what its answers hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kits.broker.data_plane import DataPlane
from millstream.broker.fetch import read as fetch_read
from millstream.broker.fetch import tail as tail_fetch
from millstream.kernels import fetch as kernel_of_fetch
from millstream.storage.config import LogConfig
from millstream.storage.producers.machine import Origin

VERSIONS = range(4, 19)
LARGE = LogConfig()


def plane_with(partitions: int = 1, config: LogConfig = LARGE, **more: Any) -> DataPlane:
    plane = DataPlane(config, **more)
    plane.create("t", partitions)
    return plane


def pinned(plane: DataPlane) -> int:
    """Pins of all segment files: what answers hold."""
    return sum(segment.log._pins for leader in plane.partitions for segment in leader.log.segments)


def write(plane: DataPlane, batch: bytearray, origin: Origin = Origin.CLIENT) -> None:
    errors: list[Any] = []
    plane.leader("t").append(
        batch, acks=1, done=lambda outcome: errors.append(outcome.error), origin=origin
    )
    assert errors == [None]


class Ways:
    """Which way answers went."""

    def __init__(self) -> None:
        self.short = self.long = 0


@contextmanager
def counted(*, is_short: bool = True) -> Iterator[Ways]:
    """Counts the ways; without the short one where that is asked for."""
    ways, kernel = Ways(), kernel_of_fetch.tail_frame
    read = fetch_read.FetchReader.read

    def short(*arguments: Any) -> Any:
        found = kernel(*arguments) if is_short else None
        ways.short += found is not None
        return found

    def long(self: fetch_read.FetchReader) -> Any:
        ways.long += 1
        return read(self)

    with (
        patch.object(fetch_read, "tail_frame", short),
        patch.object(tail_fetch, "tail_frame", short),
        patch.object(fetch_read.FetchReader, "read", long),
    ):
        yield ways
