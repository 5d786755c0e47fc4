"""The `partition.metadata` file: which incarnation of a topic a partition directory belongs to.

A topic that is deleted and created again keeps its name, so the directory's name does not
say whether its log belongs to the topic that exists now (KIP-516).
"""

import base64
import binascii
from typing import Final
from uuid import UUID

from millstream.model.errors import OperatingError
from millstream.model.ids import TopicId
from millstream.model.invariant import invariant
from millstream.runtime.disk import Disk, read_whole, write_atomically
from millstream.storage.directories.checkpoints import INT32_MAX, parse_number

_VERSION: Final = 0
_VERSION_KEY: Final = "version"
_TOPIC_ID_KEY: Final = "topic_id"
_ZERO: Final = UUID(int=0)


class CorruptPartitionMetadata(OperatingError):
    """The file has no valid topic id; it is unknown whose partition the directory is."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


def read_topic_id(disk: Disk, path: str) -> TopicId | None:
    """The topic id in the file, None when it is missing; raises CorruptPartitionMetadata."""
    try:
        raw = read_whole(disk, path)
    except FileNotFoundError:
        return None
    try:
        lines = raw.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptPartitionMetadata(path, "not ASCII") from error
    if len(lines) < 2:
        raise CorruptPartitionMetadata(path, f"{len(lines)} lines")
    # As in Kafka a higher version, and more lines, are fine: a downgrade must stay possible.
    if parse_number(_value(path, lines[0], _VERSION_KEY), INT32_MAX) is None:
        raise CorruptPartitionMetadata(path, f"version {lines[0]!r}")
    topic_id = parse_topic_id(_value(path, lines[1], _TOPIC_ID_KEY))
    if topic_id is None:
        raise CorruptPartitionMetadata(path, f"topic id {lines[1]!r}")
    return topic_id


def write_topic_id(disk: Disk, path: str, topic_id: TopicId) -> None:
    """Write the file, durably. It comes before the partition's first batch."""
    write_atomically(disk, path, encode_topic_id(topic_id))


def encode_topic_id(topic_id: TopicId) -> bytes:
    """The file's content."""
    invariant(topic_id != _ZERO, "I-19 a partition directory without a topic id")
    text = f"{_VERSION_KEY}: {_VERSION}\n{_TOPIC_ID_KEY}: {format_topic_id(topic_id)}"
    return text.encode("ascii")


def format_topic_id(topic_id: TopicId) -> str:
    """Kafka's text form of an id: 22 characters of URL-safe base64, no padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def parse_topic_id(text: str) -> TopicId | None:
    """The id that `format_topic_id` gives `text` for; None for anything else and for zero."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != len(_ZERO.bytes):
        return None
    topic_id = TopicId(UUID(bytes=raw))
    return topic_id if topic_id != _ZERO and format_topic_id(topic_id) == text else None


def _value(path: str, line: str, key: str) -> str:
    name, separator, value = line.partition(":")
    if name != key or not separator:
        raise CorruptPartitionMetadata(path, f"no {key!r} in {line!r}")
    return value.strip()
