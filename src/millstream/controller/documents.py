"""The controller's files: human-readable lines of JSON, and a checksum in the last line.

They are written atomically, so a crash leaves none of them torn; the checksum detects bit rot and
manual edits. A file that does not verify is an error with its path and reason, never a silently
missing topic.

A topic's leader epochs are kept relative to the broker's count of starts: each start is an
election of the same leader, which may have lost an unflushed tail (KIP-320), and every epoch must
rise with it. One small file counts the starts, so that ten thousand topics need no rewriting.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from millstream.controller.image import PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.storage.directories.partition_metadata import format_topic_id, parse_topic_id

T = TypeVar("T")

VERSION: Final = 1
_CHECKSUM: Final = "crc32 "
_CHECKSUM_BYTES: Final = len(_CHECKSUM) + 8 + 1


class UnreadableDocument(Exception):
    """Why a file is not valid; the store adds the path and collects these errors."""


class BrokerState(NamedTuple):
    """This broker's identity, and how often it was started."""

    broker_id: BrokerId
    cluster_id: str
    starts: int


class KnownDirectory(NamedTuple):
    """A log directory that may hold partitions."""

    directory_id: UUID
    path: str
    """Its path when it was last seen."""


class BrokerConfigs(NamedTuple):
    """Dynamic settings of one broker, or of all brokers with the name ""."""

    name: str
    configs: Mapping[str, str]


# -- the form all of them have -----------------------------------------------------------------


def encode(kind: str, lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode a document; `lines[0]` is its head."""
    head = {"kind": kind, "version": VERSION, **lines[0]}
    text = "".join(f"{json.dumps(line)}\n" for line in (head, *lines[1:]))
    body = text.encode("ascii")
    return body + f"{_CHECKSUM}{zlib.crc32(body):08x}\n".encode("ascii")


def decode(kind: str, raw: bytes) -> list[dict[str, Any]]:
    """The lines of a document of this kind; raises UnreadableDocument."""
    body, seal = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if seal != f"{_CHECKSUM}{zlib.crc32(body):08x}\n".encode("ascii"):
        raise UnreadableDocument(f"the checksum of its {len(raw)} bytes does not match")
    try:
        lines = [json.loads(line) for line in body.decode("ascii").splitlines()]
        head = lines[0]
        found_kind, version = head["kind"], head["version"]
    except (ValueError, LookupError, TypeError) as error:
        raise UnreadableDocument(f"not a metadata document: {error!r}") from error
    if version != VERSION:
        raise UnreadableDocument(
            f"version {version!r} is of another release; this one is {VERSION}"
        )
    if found_kind != kind:
        raise UnreadableDocument(f"it is of kind {found_kind!r}, not {kind!r}")
    return lines


def _fields(lines: list[dict[str, Any]], read: Callable[[list[dict[str, Any]]], T]) -> T:
    try:
        return read(lines)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableDocument(f"a field is missing or wrong: {error!r}") from error


# -- topics ------------------------------------------------------------------------------------


def encode_topic(topic: TopicImage, *, starts: int) -> bytes:
    """A topic whose epochs are those of start number `starts`."""
    head = {
        "name": topic.name,
        "topic_id": format_topic_id(topic.topic_id),
        "starts": starts,
        "configs": dict(topic.configs),
    }
    partitions = [
        {
            "partition": one.index,
            "leader": one.leader,
            "leader_epoch": one.leader_epoch,
            "partition_epoch": one.partition_epoch,
            "replicas": one.replicas,
            "isr": one.isr,
        }
        for one in topic.partitions
    ]
    return encode("topic", [head, *partitions])


def decode_topic(raw: bytes, *, starts: int) -> TopicImage:
    """The topic with its epochs as they are at start number `starts`."""
    return _fields(decode("topic", raw), lambda lines: _topic(lines, starts))


def _topic(lines: list[dict[str, Any]], starts: int) -> TopicImage:
    head = lines[0]
    since = starts - head["starts"]
    if since < 0:
        raise ValueError(f"written in start {head['starts']}, this is only start {starts}")
    partitions = tuple(_partition(line, since) for line in lines[1:])
    if not partitions or [one.index for one in partitions] != list(range(len(partitions))):
        raise ValueError("its partitions are not numbered from 0")
    configs = {str(name): str(value) for name, value in head["configs"].items()}
    return TopicImage(str(head["name"]), _topic_id(head["topic_id"]), partitions, configs)


def _partition(line: dict[str, Any], since: int) -> PartitionImage:
    return PartitionImage(
        index=int(line["partition"]),
        replicas=tuple(BrokerId(int(one)) for one in line["replicas"]),
        isr=tuple(BrokerId(int(one)) for one in line["isr"]),
        leader=BrokerId(int(line["leader"])),
        leader_epoch=LeaderEpoch(int(line["leader_epoch"]) + since),
        partition_epoch=int(line["partition_epoch"]) + since,
    )


def _topic_id(text: str) -> TopicId:
    topic_id = parse_topic_id(text)
    if topic_id is None:
        raise ValueError(f"{text!r} is no topic id")
    return topic_id


# -- the small ones ----------------------------------------------------------------------------


def encode_state(state: BrokerState) -> bytes:
    return encode("broker", [state._asdict()])


def decode_state(raw: bytes) -> BrokerState:
    return _fields(
        decode("broker", raw),
        lambda lines: BrokerState(
            BrokerId(int(lines[0]["broker_id"])),
            str(lines[0]["cluster_id"]),
            int(lines[0]["starts"]),
        ),
    )


def encode_directory(directory: KnownDirectory) -> bytes:
    """A known log directory; in a log directory: the one that has the metadata."""
    directory_id = format_topic_id(TopicId(directory.directory_id))
    return encode("log-directory", [{"directory_id": directory_id, "path": directory.path}])


def decode_directory(raw: bytes) -> KnownDirectory:
    return _fields(
        decode("log-directory", raw),
        lambda lines: KnownDirectory(_topic_id(lines[0]["directory_id"]), str(lines[0]["path"])),
    )


def encode_producer_ids(next_producer_id: int) -> bytes:
    return encode("producer-ids", [{"next_producer_id": next_producer_id}])


def decode_producer_ids(raw: bytes) -> int:
    lines = decode("producer-ids", raw)
    return _fields(lines, lambda lines: int(lines[0]["next_producer_id"]))


def encode_broker_configs(broker: BrokerConfigs) -> bytes:
    return encode("broker-configs", [{"broker": broker.name, "configs": dict(broker.configs)}])


def decode_broker_configs(raw: bytes) -> BrokerConfigs:
    return _fields(
        decode("broker-configs", raw),
        lambda lines: BrokerConfigs(
            str(lines[0]["broker"]),
            {str(name): str(value) for name, value in lines[0]["configs"].items()},
        ),
    )
