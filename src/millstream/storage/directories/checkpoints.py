"""Offset checkpoints of a log directory: small text files that are replaced as a whole.

Kafka's format, version 0, so that either system can open the other's directory: a line with the
version, a line with the number of entries, one line per entry. We are stricter than Kafka when
reading: every line ends in a newline and the count must match, so no prefix of a file (and no
empty file) passes for a shorter valid one. The caller falls back to the safe default.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicPartition
from millstream.model.invariant import invariant
from millstream.runtime.disk import Disk, read_whole
from millstream.storage.names import TEMPORARY

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_VERSION: Final = "0"
_HEADER_LINES: Final = 2


class CorruptCheckpoint(OperatingError):
    """A checkpoint file that cannot be trusted; what it held is found again in the log itself."""

    def __init__(self, path: str, line_number: int, reason: str) -> None:
        self.path, self.line_number, self.reason = path, line_number, reason
        super().__init__(f"{path}, line {line_number}: {reason}")


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, Offset]:
    """The offsets in the file, none when it is missing; raises CorruptCheckpoint."""
    offsets: dict[TopicPartition, Offset] = {}
    for line_number, line in read_entries(disk, path):
        fields = line.split()
        if len(fields) != 3:
            raise CorruptCheckpoint(path, line_number, f"not 'topic partition offset': {line!r}")
        topic, partition_text, offset_text = fields
        partition = parse_number(partition_text, INT32_MAX)
        offset = parse_number(offset_text, INT64_MAX)
        if partition is None or offset is None:
            raise CorruptCheckpoint(path, line_number, f"not a number: {line!r}")
        key = TopicPartition(topic, partition)
        if key in offsets:
            raise CorruptCheckpoint(path, line_number, f"{key} is named twice")
        offsets[key] = Offset(offset)
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    """Replace the file, durably: a crash leaves the old or the new offsets."""
    replace_offsets(disk, path, offsets)
    disk.sync_directory(path.rpartition("/")[0])


def replace_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    """Replace the file, or raise OSError with the old one in place.

    After a power loss either may be there until the caller has synced the directory.
    """
    for key, offset in offsets.items():
        invariant(offset >= 0, "I-05 checkpoint of a negative offset", of=str(key), offset=offset)
    entries = (f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items()))
    content = encode_entries(entries)
    # Closed only after the renaming: the sync of the directory that follows needs a descriptor.
    with disk.open_write(path + TEMPORARY) as file:
        file.truncate(0)
        file.write_at(0, content)
        file.sync()
        disk.rename(path + TEMPORARY, path)


def read_entries(disk: Disk, path: str) -> list[tuple[int, str]]:
    """(line number, text) of each entry of a version 0 checkpoint; none when it is missing."""
    try:
        raw = read_whole(disk, path)
    except FileNotFoundError:
        return []
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line_number = raw.count(b"\n", 0, error.start) + 1
        raise CorruptCheckpoint(path, line_number, "not UTF-8") from error
    lines = text.split("\n")
    # Without this rule "topic 0 123" cut to "topic 0 12" would be read as offset 12.
    if lines.pop():
        raise CorruptCheckpoint(path, len(lines) + 1, "the last line has no end")
    if len(lines) < _HEADER_LINES:
        raise CorruptCheckpoint(path, len(lines) + 1, "version or entry count is missing")
    if lines[0] != _VERSION:
        raise CorruptCheckpoint(path, 1, f"unknown version {lines[0]!r}")
    found_count = len(lines) - _HEADER_LINES
    if parse_number(lines[1], INT32_MAX) != found_count:
        raise CorruptCheckpoint(path, 2, f"{lines[1]!r} entries announced, {found_count} found")
    return list(enumerate(lines[_HEADER_LINES:], start=_HEADER_LINES + 1))


def encode_entries(entries: Iterable[str]) -> bytes:
    """The bytes of a version 0 checkpoint."""
    lines = list(entries)
    text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
    invariant(text.count("\n") == len(lines) + _HEADER_LINES, "I-10 a checkpoint entry spans lines")
    return text.encode("utf-8")


def parse_number(text: str, number_max: int) -> int | None:
    """A number >= 0 in plain decimal digits, else None (`int` alone also takes "1_0" or " 1")."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(number_max)):
        return None
    number = int(text)
    return number if number <= number_max else None
