"""`millstream consume`: print the records of a topic, of ours or of Apache Kafka.

Records go to stdout as they come, one a line; it goes on until it is ended (Ctrl-C), the reader of
its output goes away, or as many were printed as asked for. It reads without a group and stores no
positions; partitions that are added meanwhile are not read. Exit code 0 when it ended as asked, 130
after Ctrl-C, 1 when something went wrong, 2 for wrong options.
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
    from millstream.client.fetch.plain import PlainRows
    from millstream.client.offsets import OffsetSpec
    from millstream.model.ids import TopicPartition

_NULL: Final = b"null"


class Format(StrEnum):
    """How a record becomes a line."""

    VALUE = "value"
    KEY_VALUE = "key-value"
    FULL = "full"
    """Partition, offset, time in ms, headers, key and value, with tabs between."""
    JSON = "json"
    """Bytes that are no UTF-8 are in base64, under names that say so."""


class _Start(NamedTuple):
    """Where to begin: exactly one of these."""

    spec: "OffsetSpec | None"
    offset: int | None


def consume(  # noqa: PLR0913 - every option is a parameter
    topic: Topic,
    partition: Annotated[
        list[int] | None, partition_option("Only this one; may be repeated.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Also what is there already.")
    ] = False,
    offset: Annotated[
        int | None,
        number_option(
            "--offset",
            low=-INT64_MAX,
            high=INT64_MAX,
            told="Begin there; needs --partition. Negative: so many before the end.",
        ),
    ] = None,
    timestamp: Annotated[
        int | None,
        number_option(
            "--timestamp",
            low=-INT64_MAX,
            high=INT64_MAX,
            told="Begin with records of that time, in ms since 1970.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        number_option("--max-messages", "-n", low=1, high=INT64_MAX, told="End after so many."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End where the topic ends now.")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="Leave out open and aborted transactions.")
    ] = False,
    format: Annotated[Format, typer.Option(help="What to print of a record.")] = Format.VALUE,  # noqa: A002
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Print the records of a topic; new ones only, unless told otherwise."""
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
        refuse("--from-beginning, --offset and --timestamp exclude each other")
    if offset is not None:
        if not partitions:
            refuse("--offset needs --partition: offsets of partitions have nothing in common")
        return _Start(LATEST if offset < 0 else None, offset)
    if timestamp is not None:
        if timestamp < 0:
            refuse(f"--timestamp {timestamp}: milliseconds since 1970 are wanted")
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
    places = [TopicPartition(topic, index) for index in dict.fromkeys(chosen)]
    ends = _found(client, places, LATEST)
    begins = dict.fromkeys(places, start.offset or 0)
    if until_end and start.spec is None:
        _check_beginnings(begins, ends)
    if start.spec is not None:
        found = _found(client, places, start.spec)
        back = min(0, start.offset or 0)
        # No record of that time or later: what comes next will be the first.
        begins = {
            at: max(0, (ends[at] if (to := found[at]) is None else to) + back) for at in places
        }
    return [
        ReadRange(
            at, Offset(begins[at]), Offset(ends[at] or 0) if until_end else None, info.topic_id
        )
        for at in places
    ]


def _check_beginnings(
    begins: "Mapping[TopicPartition, int]", ends: "Mapping[TopicPartition, Any]"
) -> None:
    """A range that ends before it begins would be done at once, as if all were well."""
    from millstream.client.errors import OffsetOutOfRange
    from millstream.model.ids import Offset

    for at, begin in begins.items():
        if begin > (ends[at] or 0):
            raise OffsetOutOfRange(at, wanted=Offset(begin), end=ends[at] or Offset(0))


def _found(
    client: "BlockingClient", places: "Sequence[TopicPartition]", spec: "OffsetSpec"
) -> "dict[TopicPartition, Any]":
    found = client.list_offsets(dict.fromkeys(places, spec))
    return {at: one.offset for at, one in found.items()}


def _print(
    client: "BlockingClient", ranges: "list[ReadRange]", kind: Format, max_messages: int | None
) -> None:
    from millstream.client.fetch.plain import read_plain

    lines_of = _FORMATS[kind]
    left = max_messages
    stdout = sys.stdout.buffer
    with read_plain(client, ranges, with_headers=kind in _WITH_HEADERS) as batches:
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


def _values(rows: "PlainRows") -> Iterator[bytes]:
    for value in rows.values():
        yield b"%b\n" % (_NULL if value is None else value)


def _keys_and_values(rows: "PlainRows") -> Iterator[bytes]:
    for key, value in zip(rows.keys(), rows.values(), strict=True):
        yield b"%b\t%b\n" % (_NULL if key is None else key, _NULL if value is None else value)


def _full(rows: "PlainRows") -> Iterator[bytes]:
    partition = rows.partition.partition
    columns = rows.offsets(), rows.timestamps_ms(), rows.headers(), rows.keys(), rows.values()
    for offset, time_ms, headers, key, value in zip(*columns, strict=True):
        told = b",".join(
            b"%b=%b" % (name.encode(), _NULL if one is None else one) for name, one in headers
        )
        yield b"%d\t%d\t%d\t%b\t%b\t%b\n" % (
            *(partition, offset, time_ms, told),
            _NULL if key is None else key,
            _NULL if value is None else value,
        )


def _json(rows: "PlainRows") -> Iterator[bytes]:
    import json

    place = {"topic": rows.partition.topic, "partition": rows.partition.partition}
    times = zip(rows.offsets(), rows.timestamps_ms(), rows.are_append_times(), strict=True)
    for (offset, time_ms, is_append_time), headers, key, value in zip(
        times, rows.headers(), rows.keys(), rows.values(), strict=True
    ):
        told: dict[str, Any] = {**place, "offset": offset, "timestamp": time_ms}
        told["timestampType"] = "LogAppendTime" if is_append_time else "CreateTime"
        told |= _text("key", key) | _text("value", value)
        told["headers"] = [{"key": name} | _text("value", one) for name, one in headers]
        yield json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


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
