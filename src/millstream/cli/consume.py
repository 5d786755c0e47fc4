"""`millstream consume`: print the records of a topic of Millstream or Apache Kafka.

Records go to stdout as they arrive, one per line, until Ctrl-C, until the reader of the output
exits, or until the requested number was printed. It reads without a consumer group and commits no
offsets; partitions that are added meanwhile are not read. Exit code 0 when it ended as requested,
130 after Ctrl-C, 1 on errors, 2 for wrong options.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from millstream.cli.client_options import (
    INT64_MAX,
    LOCAL,
    TIMEOUT_S,
    Servers,
    Timeout,
    Topic,
    client_settings,
    connected,
    number_option,
    partition_option,
)
from millstream.cli.failure import (
    interrupted_at_once,
    printing,
    refuse,
    require_stdout,
)

if TYPE_CHECKING:
    from millstream.client.blocking import BlockingClient
    from millstream.client.fetch.chunks import ReadRange
    from millstream.client.fetch.python_rows import PythonRows
    from millstream.client.offsets import OffsetSpec
    from millstream.model.ids import TopicPartition

_NULL: Final = b"null"


class Format(StrEnum):
    """How a record becomes a line."""

    VALUE = "value"
    KEY_VALUE = "key-value"
    FULL = "full"
    """Partition, offset, timestamp in ms, headers, key and value, separated by tabs."""
    JSON = "json"
    """Bytes that are not UTF-8 are in base64, under `keyBase64` and `valueBase64`."""


class _Start(NamedTuple):
    """Where to begin: exactly one of these."""

    spec: "OffsetSpec | None"
    offset: int | None


def consume(  # noqa: PLR0913 - every option is a parameter
    topic: Topic,
    partition: Annotated[
        list[int] | None, partition_option("Read only this partition; may be repeated.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the earliest offsets.")
    ] = False,
    offset: Annotated[
        int | None,
        number_option(
            "--offset",
            low=-INT64_MAX,
            high=INT64_MAX,
            help_text="Start at this offset; needs --partition. -N starts N offsets before the"
            " end.",
        ),
    ] = None,
    timestamp: Annotated[
        int | None,
        number_option(
            "--timestamp",
            low=-INT64_MAX,
            high=INT64_MAX,
            help_text="Start at the first record at or after this time (ms since the epoch).",
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        number_option(
            "--max-messages", "-n", low=1, high=INT64_MAX, help_text="Exit after this many records."
        ),
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end", help="Exit at the offsets that were the latest when the command started."
        ),
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="Only committed records (read_committed).")
    ] = False,
    format: Annotated[Format, typer.Option(help="Output format of a record.")] = Format.VALUE,  # noqa: A002
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Print the records of a topic; by default only new ones."""
    start = _start(partition, from_beginning=from_beginning, offset=offset, timestamp=timestamp)
    require_stdout()
    level = {"isolation.level": "read_committed" if committed else "read_uncommitted"}
    with (
        interrupted_at_once(),  # every record that was printed was flushed
        connected(client_settings(bootstrap_server, timeout, level)) as client,
    ):
        ranges = _ranges(client, topic, partition, start, until_end=until_end)
        _print(client, ranges, format, max_messages)


def _start(
    partitions: list[int] | None,
    *,
    from_beginning: bool,
    offset: int | None,
    timestamp: int | None,
) -> _Start:
    from millstream.client.offsets import EARLIEST, LATEST, OffsetSpec

    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        refuse("--from-beginning, --offset and --timestamp are mutually exclusive; use one")
    if offset is not None:
        if not partitions:
            refuse("--offset needs --partition: each partition has offsets of its own")
        return _Start(LATEST if offset < 0 else None, offset)
    if timestamp is not None:
        if timestamp < 0:
            refuse(f"--timestamp {timestamp}: must be milliseconds since the epoch, 0 or more")
        return _Start(OffsetSpec.at_time(timestamp), None)
    return _Start(EARLIEST if from_beginning else LATEST, None)


def _ranges(
    client: "BlockingClient",
    topic: str,
    partitions: list[int] | None,
    start: _Start,
    *,
    until_end: bool,
) -> "list[ReadRange]":
    from millstream.client.fetch.chunks import ReadRange
    from millstream.client.offsets import LATEST
    from millstream.model.ids import Offset, TopicPartition

    info = client.topics([topic])[topic]
    chosen = partitions if partitions else range(info.partition_count)
    targets = [TopicPartition(topic, index) for index in dict.fromkeys(chosen)]
    ends = _found(client, targets, LATEST)
    begins = dict.fromkeys(targets, start.offset or 0)
    if until_end and start.spec is None:
        _check_beginnings(begins, ends)
    if start.spec is not None:
        found = _found(client, targets, start.spec)
        back = min(0, start.offset or 0)
        # No record of that time or later: what comes next will be the first.
        begins = {
            at: max(0, (ends[at] if (to := found[at]) is None else to) + back) for at in targets
        }
    return [
        ReadRange(
            at, Offset(begins[at]), Offset(ends[at] or 0) if until_end else None, info.topic_id
        )
        for at in targets
    ]


def _check_beginnings(
    begins: "Mapping[TopicPartition, int]", ends: "Mapping[TopicPartition, Any]"
) -> None:
    """Refuse a range that ends before it begins: it would succeed at once without reading."""
    from millstream.client.errors import OffsetOutOfRange
    from millstream.model.ids import Offset

    for at, begin in begins.items():
        if begin > (ends[at] or 0):
            raise OffsetOutOfRange(at, wanted=Offset(begin), end=ends[at] or Offset(0))


def _found(
    client: "BlockingClient", targets: "Sequence[TopicPartition]", spec: "OffsetSpec"
) -> "dict[TopicPartition, Any]":
    found = client.list_offsets(dict.fromkeys(targets, spec))
    return {at: one.offset for at, one in found.items()}


def _print(
    client: "BlockingClient", ranges: "list[ReadRange]", kind: Format, max_messages: int | None
) -> None:
    from millstream.client.fetch.python_rows import read_python_rows

    lines_of = _FORMATS[kind]
    left = max_messages
    stdout = sys.stdout.buffer
    with read_python_rows(client, ranges, with_headers=kind in _WITH_HEADERS) as batches:
        for batch in batches:
            some = batch if left is None else batch.first(left)
            with printing():
                stdout.write(b"".join(lines_of(some)))
                stdout.flush()
            if left is not None:
                left -= some.row_count
                if not left:
                    return


# -- formats


def _values(rows: "PythonRows") -> Iterator[bytes]:
    for value in rows.values():
        yield b"%b\n" % (_NULL if value is None else value)


def _keys_and_values(rows: "PythonRows") -> Iterator[bytes]:
    for key, value in zip(rows.keys(), rows.values(), strict=True):
        yield b"%b\t%b\n" % (_NULL if key is None else key, _NULL if value is None else value)


def _full(rows: "PythonRows") -> Iterator[bytes]:
    partition = rows.partition.partition
    columns = rows.offsets(), rows.timestamps_ms(), rows.headers(), rows.keys(), rows.values()
    for offset, time_ms, headers, key, value in zip(*columns, strict=True):
        header_text = b",".join(
            b"%b=%b" % (name.encode(), _NULL if one is None else one) for name, one in headers
        )
        yield b"%d\t%d\t%d\t%b\t%b\t%b\n" % (
            *(partition, offset, time_ms, header_text),
            _NULL if key is None else key,
            _NULL if value is None else value,
        )


def _json(rows: "PythonRows") -> Iterator[bytes]:
    import json

    source = {"topic": rows.partition.topic, "partition": rows.partition.partition}
    times = zip(rows.offsets(), rows.timestamps_ms(), rows.are_append_times(), strict=True)
    for (offset, time_ms, is_append_time), headers, key, value in zip(
        times, rows.headers(), rows.keys(), rows.values(), strict=True
    ):
        record: dict[str, Any] = {**source, "offset": offset, "timestamp": time_ms}
        record["timestampType"] = "LogAppendTime" if is_append_time else "CreateTime"
        record |= _text("key", key) | _text("value", value)
        record["headers"] = [{"key": name} | _text("value", one) for name, one in headers]
        yield json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    from base64 import b64encode

    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": b64encode(data).decode()}


_FORMATS: Final[dict[Format, Callable[[Any], Iterator[bytes]]]] = {
    Format.VALUE: _values,
    Format.KEY_VALUE: _keys_and_values,
    Format.FULL: _full,
    Format.JSON: _json,
}
_WITH_HEADERS: Final = (Format.FULL, Format.JSON)
