"""What the tests of Fetch share: a broker's data plane, and what its answers hold."""

from typing import Any

from data_plane import DataPlane
from millstream.storage.config import LogConfig
from millstream.storage.producers import Origin

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
