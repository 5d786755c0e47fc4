"""What members of a consumer group, a producer and an observer record, one JSON line per event.

Every program writes a file of its own (tests/interop/clients/README.md has the format), so that
nothing is lost with a killed process and no two writers meet. Times are nanoseconds of the
machine's monotonic clock, which all languages can read: events of different processes on one
machine have one order.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

PartitionName = tuple[str, int]
"""Topic and partition index."""

UNKNOWN_GENERATION: Final = -1
"""Of a client that does not report it, or is in no group."""
NOTHING_COMMITTED: Final = -1


class Began(NamedTuple):
    """A member's first event: its identity."""

    at_ns: int
    member: str
    """A name of its own for every life of a client."""
    group: str
    instance: str | None
    """With static membership: lives with one instance id are one owner."""
    protocol: str


class Assigned(NamedTuple):
    """These were added to what it owns; before it reads them."""

    at_ns: int
    partitions: tuple[PartitionName, ...]
    generation: int


class GenerationChanged(NamedTuple):
    """It is now in this generation (or member epoch) and keeps what it owns."""

    at_ns: int
    generation: int


class Revoked(NamedTuple):
    """It gives these up and has stopped processing them, before the coordinator is notified."""

    at_ns: int
    partitions: tuple[PartitionName, ...]


class Lost(NamedTuple):
    """It learned that it no longer owns these: another member may have owned them before."""

    at_ns: int
    partitions: tuple[PartitionName, ...]


class Processed(NamedTuple):
    """One record, done."""

    at_ns: int
    partition: PartitionName
    offset: int
    value: str


class Committed(NamedTuple):
    """Acknowledged; the request was sent at `began_ns` or later."""

    at_ns: int
    began_ns: int
    offsets: Mapping[PartitionName, int]


class Refused(NamedTuple):
    """A commit that the client reported as failed; it may be stored or not."""

    at_ns: int
    offsets: Mapping[PartitionName, int]
    why: str


class Left(NamedTuple):
    """It has left the group in good order, or at least its client was closed."""

    at_ns: int


class Failed(NamedTuple):
    """The client gave up by itself."""

    at_ns: int
    why: str


MemberEvent = (
    Began
    | Assigned
    | GenerationChanged
    | Revoked
    | Lost
    | Processed
    | Committed
    | Refused
    | Left
    | Failed
)


class Produced(NamedTuple):
    """Acknowledged with acks=all."""

    at_ns: int
    partition: PartitionName
    offset: int
    value: str


class ObservedOffsets(NamedTuple):
    """The committed offsets that an observer read; -1 where nothing is committed."""

    at_ns: int
    began_ns: int
    offsets: Mapping[PartitionName, int]


class Harmed(NamedTuple):
    """From here on a member cannot be expected to know what it owns."""

    at_ns: int
    member: str
    how: str


def member_event(line: str) -> MemberEvent:
    """One line of a member's file."""
    said = json.loads(line)
    at_ns = said["t"]
    match said["e"]:
        case "began":
            return Began(at_ns, said["member"], said["group"], said["instance"], said["protocol"])
        case "assigned":
            return Assigned(at_ns, _partitions(said), _generation(said))
        case "generation":
            return GenerationChanged(at_ns, _generation(said))
        case "revoked":
            return Revoked(at_ns, _partitions(said))
        case "lost":
            return Lost(at_ns, _partitions(said))
        case "processed":
            return Processed(at_ns, (said["topic"], said["p"]), said["o"], said["v"])
        case "committed":
            return Committed(at_ns, said["from"], _offsets(said))
        case "refused":
            return Refused(at_ns, _offsets(said), said["why"])
        case "left":
            return Left(at_ns)
        case _:
            return Failed(at_ns, said["why"])


def produced_event(line: str) -> Produced | Failed:
    """One line of a producer's file."""
    said = json.loads(line)
    if said["e"] == "error":
        return Failed(said["t"], said["why"])
    return Produced(said["t"], (said["topic"], said["p"]), said["o"], said["v"])


def _partitions(said: Mapping[str, Any]) -> tuple[PartitionName, ...]:
    return tuple((topic, partition) for topic, partition in said["parts"])


def _offsets(said: Mapping[str, Any]) -> dict[PartitionName, int]:
    return {(topic, partition): offset for topic, partition, offset in said["offsets"]}


def _generation(said: Mapping[str, Any]) -> int:
    found = said.get("gen")
    return UNKNOWN_GENERATION if found is None else int(found)


class LineFollower:
    """The complete lines that were added to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._position = 0

    def take(self) -> Iterator[str]:
        """A file that does not exist yet has none; an incomplete line waits for its end."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        yield from whole.decode().splitlines()


class EventWriter:
    """For programs in Python. Every line is written at once: a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, event: str, **said: object) -> int:
        """Record it with the time, which is returned."""
        at_ns = time.monotonic_ns()
        self._file.write(json.dumps({"t": at_ns, "e": event, **said}).encode() + b"\n")
        return at_ns

    def partitions(self, event: str, partitions: Sequence[PartitionName], **said: object) -> None:
        """An event about partitions."""
        self.write(event, parts=[list(partition) for partition in partitions], **said)

    def close(self) -> None:
        self._file.close()
