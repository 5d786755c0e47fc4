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


class Paths:
    """How many answers took each path."""

    def __init__(self) -> None:
        self.fast = self.slow = 0


@contextmanager
def counted(*, is_fast: bool = True) -> Iterator[Paths]:
    """Counts the paths; optionally without the fast one."""
    paths, kernel = Paths(), kernel_of_fetch.tail_frame
    read = fetch_read.FetchReader.read

    def fast(*arguments: Any) -> Any:
        found = kernel(*arguments) if is_fast else None
        paths.fast += found is not None
        return found

    def slow(self: fetch_read.FetchReader, cursors: Any) -> Any:
        paths.slow += 1
        return read(self, cursors)

    with (
        patch.object(fetch_read, "tail_frame", fast),
        patch.object(tail_fetch, "tail_frame", fast),
        patch.object(fetch_read.FetchReader, "read", slow),
    ):
        yield paths
