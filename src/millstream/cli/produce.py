"""`millstream produce`: write lines of stdin as records to a topic of Millstream or Apache Kafka.

The number of stored records is always printed to stderr, and an error names the line of the input
that it is about. Exit code 0 when all were stored, 1 when some were not, 130 after Ctrl-C, 2 for
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
"""Read at once, at most; typed input still arrives line by line."""

RECORD_OVERHEAD_BYTES: Final = 96
"""Upper bound of what a batch with one record has in addition to key and value."""


class Compression(StrEnum):
    """The codec of record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class _Target(NamedTuple):
    """Where lines go, and how they are split."""

    topic: str
    partition: int | None
    separator: bytes | None


def produce(
    topic: Topic,
    key_separator: Annotated[
        str | None,
        typer.Option(
            help=r"Separator between key and value, for example \t for a tab. Without it, the whole"
            " line is the value."
        ),
    ] = None,
    partition: Annotated[
        int | None, partition_option("Write to this partition, whatever the keys.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="Compression of record batches.")
    ] = Compression.NONE,
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write each line of stdin as a record; the topic must exist."""
    target = _Target(topic, partition, _separator(key_separator))
    settings = _settings(bootstrap_server, timeout, compression)
    if sys.stdin is None:
        complain("standard input is closed; pipe or type the records")
        raise typer.Exit(EXIT_PROBLEMS)
    with connected(settings) as client:
        code = _Run(client, target).run()
    if code:
        raise typer.Exit(code)


def _separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return separator_of(os.fsencode(text))
    except ValueError as error:
        typed = repr(text).replace("\\\\", "\\")  # on one line, with the backslashes as typed
        refuse(f"--key-separator {typed}: {error}")


def _settings(servers: str, timeout_s: float, compression: Compression) -> "ClientSettings":
    timeout_ms = max(20, milliseconds(timeout_s))
    configs = {
        "compression.type": compression.value,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        # Leaves time for a second attempt.
        "request.timeout.ms": timeout_ms // 2,
    }
    return client_settings(servers, timeout_s, configs)


class _Run:
    """One run of the command; remembers the first line of each write, for error messages."""

    def __init__(self, client: "BlockingClient", target: _Target) -> None:
        self._client = client
        self._target = target
        self._firsts: list[int] = []
        self._count = 0

    def run(self) -> int:
        """Write everything; prints how many records were stored and returns the exit code."""
        from millstream.client.errors import ClientError

        code = 0
        try:
            self._check_topic()
            writer = self._client.column_writer(topic=self._target.topic)
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
        except KeyboardInterrupt:  # before the start, or a second one during the flush
            if self._firsts:
                complain(
                    "interrupted while waiting for acknowledgements: more records may be stored"
                )
            return EXIT_INTERRUPTED
        finally:
            noun = "record" if self._count == 1 else "records"
            typer.echo(f"{self._count} {noun} written to {self._target.topic}", err=True)

    def _check_topic(self) -> None:
        """A missing topic or partition is an error, even if the input is empty."""
        from millstream.client.errors import TopicUnknown

        topic, partition, _ = self._target
        info = self._client.topics([topic])[topic]
        if partition is not None and partition >= info.partition_count:
            raise TopicUnknown(topic, partition=partition)

    def _write_all(self, writer: "ColumnWriter") -> None:
        source: Any = sys.stdin.buffer
        bytes_max = self._client.settings.max_request_size - RECORD_OVERHEAD_BYTES
        for lines in whole_lines(lambda: source.read1(CHUNK_BYTES), bytes_max=bytes_max):
            self._write(writer, lines)

    def _write(self, writer: "ColumnWriter", lines: Lines) -> None:
        from millstream.client.produce.bytes_batch import bytes_batch

        keys, values, error = None, lines.texts, None
        if self._target.separator is not None:
            keys, values, error = split_keys(lines, self._target.separator)
        if values:
            self._firsts.append(lines.first)
            writer.write(bytes_batch(values, keys=keys, partition=self._target.partition))
        if error is not None:
            raise error

    def _flush(self, writer: "ColumnWriter") -> int:
        """Wait for acknowledgements; returns the exit code."""
        from millstream.client.errors import ClientError

        code = 0
        try:
            for _ in range(2):  # the first may raise an error, the second returns the counts
                try:
                    self._count = sum(one.records for one in writer.flush().values())
                    break
                except ClientError as error:
                    code = code or self._failed(error)
        finally:
            writer.abort()
        return code

    def _failed(self, error: Exception) -> int:
        """Print the error, with the line of the input if that is known."""
        from millstream.client.errors import RecordTooLarge

        if isinstance(error, OSError):
            complain(f"standard input: {error.strerror or error}")
        elif isinstance(error, RecordTooLarge) and error.write_and_row is not None:
            write, row = error.write_and_row
            complain(f"line {self._firsts[write - 1] + row}: {error}")
        else:
            complain(str(error))
        return EXIT_PROBLEMS
