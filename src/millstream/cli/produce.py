"""`millstream produce`: lines of stdin become records of a topic, ours or Apache Kafka's.

How many were stored is a line on stderr, whatever happens. Exit code 0 when all of them were, 1
when some were not, 2 for wrong options.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from millstream.cli.failure import EXIT_PROBLEMS, complain, refuse, require_pyarrow
from millstream.cli.topics import LOCAL, TIMEOUT_S, Servers, Timeout

if TYPE_CHECKING:
    from millstream.client.column_writer import ColumnWriter
    from millstream.client.settings import ClientSettings

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Read at once, at most; what is typed comes line by line all the same."""

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _LineError(Exception):
    """A line that no record can be made of."""


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the records go.")],
    key_separator: Annotated[
        str | None,
        typer.Option(help="What stands between key and value; without it lines are values."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Where all of them go, whatever their keys.")
    ] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write each line of stdin as a record."""
    require_pyarrow("produce")
    if key_separator == "":
        refuse("--key-separator is empty")
    if compression not in _CODECS:
        refuse(f"--compression {compression}: it can be {', '.join(_CODECS)}")
    settings = _settings(bootstrap_server, timeout, compression)
    separator = None if key_separator is None else key_separator.encode()
    if not _write(settings, topic, partition, separator):
        raise typer.Exit(EXIT_PROBLEMS)


def _settings(servers: str, timeout_s: float, compression: str) -> "ClientSettings":
    from millstream.client.errors import ConfigInvalid
    from millstream.client.settings import ClientSettings

    timeout_ms = max(20, round(timeout_s * 1000))
    try:
        return ClientSettings.from_configs(
            {
                "bootstrap.servers": servers,
                "client.id": "millstream-cli",
                "compression.type": compression,
                "default.api.timeout.ms": timeout_ms,
                "max.block.ms": timeout_ms,
                "delivery.timeout.ms": timeout_ms,
                # Time for a second attempt is left.
                "request.timeout.ms": timeout_ms // 2,
            }
        )
    except ConfigInvalid as error:
        refuse(f"--bootstrap-server {servers}: {error}")


def _write(
    settings: "ClientSettings", topic: str, partition: int | None, separator: bytes | None
) -> bool:
    """Whether everything was stored."""
    from millstream.client.blocking import BlockingClient
    from millstream.client.errors import ClientError

    count, is_well = 0, True
    with BlockingClient(settings) as client:
        try:
            writer = client.column_writer(topic=topic)
            try:
                for lines, first in _lines(sys.stdin.buffer):
                    writer.write(_batch(lines, first, partition, separator))
            except (ClientError, _LineError) as error:
                complain(str(error))
                is_well = False
            told, count = _flushed(writer)
            is_well = is_well and told
            writer.abort()
        except ClientError as error:
            complain(str(error))
            is_well = False
    typer.echo(f"{count} records written to {topic}", err=True)
    return is_well


def _flushed(writer: "ColumnWriter") -> tuple[bool, int]:
    """Whether nothing failed, and how many records were stored."""
    from millstream.client.errors import ClientError

    is_well = True
    for _ in range(2):  # the first may raise the errors, and the second tells the rest
        try:
            return is_well, sum(one.records for one in writer.flush().values())
        except ClientError as error:
            if is_well:
                complain(str(error))
            is_well = False
    return False, 0


def _lines(source: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines as they come, and the number of the first; the last may lack its end."""
    rest, number = b"", 1
    while chunk := source.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines, number
            number += len(lines)
    if rest:
        yield [rest], number


def _batch(lines: list[bytes], first: int, partition: int | None, separator: bytes | None) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if separator is not None:
        pairs = [line.partition(separator) for line in lines]
        for row, (_, found, _) in enumerate(pairs):
            if not found:
                raise _LineError(f"line {first + row} has no key separator {separator.decode()!r}")
        columns["key"] = pa.array([key for key, _, _ in pairs], pa.binary())
        lines = [value for _, _, value in pairs]
    columns["value"] = pa.array(lines, pa.binary())
    if partition is not None:
        columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), len(lines))
    return pa.record_batch(columns)
