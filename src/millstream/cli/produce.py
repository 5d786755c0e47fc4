"""`millstream produce`: lines of stdin become records of a topic, ours or Apache Kafka's.

How many were stored is a line on stderr, whatever happens, and an error names the line of the input
that it is about. Exit code 0 when all of them were, 1 when some were not, 130 after Ctrl-C, 2 for
wrong options.
"""

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from millstream.cli.client_options import (
    LOCAL,
    TIMEOUT_S,
    Servers,
    Timeout,
    Topic,
    client_settings,
    connected,
    milliseconds,
    partition_option,
)
from millstream.cli.failure import EXIT_INTERRUPTED, EXIT_PROBLEMS, complain, refuse
from millstream.cli.input_lines import LineError, Lines, separator_of, split_keys, whole_lines

if TYPE_CHECKING:
    from millstream.client.blocking import BlockingClient
    from millstream.client.column_writer import ColumnWriter
    from millstream.client.settings import ClientSettings

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Read at once, at most; what is typed comes line by line all the same."""

RECORD_OVERHEAD_BYTES: Final = 96
"""More than a batch with one record has beside key and value."""


class Compression(StrEnum):
    """How record batches are packed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class _Order(NamedTuple):
    """What becomes of lines."""

    topic: str
    partition: int | None
    separator: bytes | None


def produce(
    topic: Topic,
    key_separator: Annotated[
        str | None,
        typer.Option(
            help=r"What stands between key and value, \t for a tab; without it lines are values."
        ),
    ] = None,
    partition: Annotated[
        int | None, partition_option("Where all of them go, whatever their keys.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="How record batches are packed.")
    ] = Compression.NONE,
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write each line of stdin as a record; the topic must be there."""
    order = _Order(topic, partition, _separator(key_separator))
    settings = _settings(bootstrap_server, timeout, compression)
    if sys.stdin is None:
        complain("standard input is closed")
        raise typer.Exit(EXIT_PROBLEMS)
    with connected(settings) as client:
        code = _Run(client, order).code()
    if code:
        raise typer.Exit(code)


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return separator_of(os.fsencode(text))
    except ValueError as error:
        refuse(f"--key-separator {text!r}: {error}")


def _settings(servers: str, timeout_s: float, compression: Compression) -> "ClientSettings":
    timeout_ms = max(20, milliseconds(timeout_s))
    configs = {
        "compression.type": compression.value,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        # Time for a second attempt is left.
        "request.timeout.ms": timeout_ms // 2,
    }
    return client_settings(servers, timeout_s, configs)


class _Run:
    """One run of the command: it knows which line was the first of each write."""

    def __init__(self, client: "BlockingClient", order: _Order) -> None:
        self._client = client
        self._order = order
        self._firsts: list[int] = []
        self._count = 0

    def code(self) -> int:
        """Do it; gives the exit code, and tells how many were stored in any case."""
        from millstream.client.errors import ClientError

        code = 0
        try:
            self._find_place()
            writer = self._client.column_writer(topic=self._order.topic)
            try:
                self._write_all(writer)
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
            except (ClientError, LineError, OSError) as error:
                code = self._failed(error)
            flushed = self._flush(writer)
            return code or flushed
        except ClientError as error:
            return self._failed(error)
        except KeyboardInterrupt:  # before the start, or a second one that does not wait
            if self._firsts:
                complain("ended without waiting for the brokers: more may have been written")
            return EXIT_INTERRUPTED
        finally:
            noun = "record" if self._count == 1 else "records"
            typer.echo(f"{self._count} {noun} written to {self._order.topic}", err=True)

    def _find_place(self) -> None:
        """Also for an empty input: a topic that is not there is an error."""
        from millstream.client.errors import TopicUnknown

        topic, partition, _ = self._order
        info = self._client.topics([topic])[topic]
        if partition is not None and partition >= info.partition_count:
            raise TopicUnknown(topic, partition=partition)

    def _write_all(self, writer: "ColumnWriter") -> None:
        source: Any = sys.stdin.buffer
        bytes_max = self._client.settings.max_request_size - RECORD_OVERHEAD_BYTES
        for lines in whole_lines(lambda: source.read1(CHUNK_BYTES), bytes_max=bytes_max):
            self._write(writer, lines)

    def _write(self, writer: "ColumnWriter", lines: Lines) -> None:
        from millstream.client.produce.plain_batch import plain_batch

        keys, values, error = None, lines.texts, None
        if self._order.separator is not None:
            keys, values, error = split_keys(lines, self._order.separator)
        if values:
            self._firsts.append(lines.first)
            writer.write(plain_batch(values, keys=keys, partition=self._order.partition))
        if error is not None:
            raise error

    def _flush(self, writer: "ColumnWriter") -> int:
        """Wait for what was written; gives the exit code of that."""
        from millstream.client.errors import ClientError

        code = 0
        try:
            for _ in range(2):  # the first may raise the errors, and the second tells the rest
                try:
                    self._count = sum(one.records for one in writer.flush().values())
                    break
                except ClientError as error:
                    code = code or self._failed(error)
        finally:
            writer.abort()
        return code

    def _failed(self, error: Exception) -> int:
        """Tell what went wrong, and in which line if that is known."""
        from millstream.client.errors import RecordTooLarge

        if isinstance(error, OSError):
            complain(f"standard input: {error.strerror or error}")
        elif isinstance(error, RecordTooLarge) and error.place is not None:
            write, row = error.place
            complain(f"line {self._firsts[write - 1] + row}: {error}")
        else:
            complain(str(error))
        return EXIT_PROBLEMS
