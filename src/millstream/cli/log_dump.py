"""`millstream log dump`: the batches of a partition, and their records, as readable lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli.failure import (
    EXIT_PROBLEMS,
    UnusablePathError,
    complain,
    ending_when_unread,
    refuse,
    unusable_paths,
)

if TYPE_CHECKING:
    from millstream.cli.stored_batches import StoredBatch, StoredRecord

TEXT_LENGTH_MAX: Final = 100
"""Characters of a key or value shown; of longer ones the size is shown too."""

Directory = Annotated[
    str,
    typer.Argument(
        metavar="PARTITION_DIR", help="Directory of one partition, for example data/topic-0."
    ),
]
FromOffset = Annotated[
    int, typer.Option("--offset", min=0, help="Start with the batch that contains this offset.")
]
WithRecords = Annotated[bool, typer.Option("--records", help="Also show the records.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Stop after this many batches, or records with --records."),
]


def dump(
    directory: Directory, offset: FromOffset = 0, records: WithRecords = False, limit: Limit = None
) -> None:
    """Show the batches of a partition, one line each. Read-only.

    Exits with code 1 at a damaged or truncated batch; the batches before it are shown.
    """
    from millstream.cli.stored_batches import DamagedBatch

    with ending_when_unread(), unusable_paths(refuse):
        try:
            _show(directory, offset, records=records, limit=limit)
        except DamagedBatch as error:
            complain(str(error))
            raise typer.Exit(EXIT_PROBLEMS) from None


def _show(given: str, offset: int, *, records: bool, limit: int | None) -> None:
    from itertools import islice

    from millstream.cli.partitions import check_directory, check_files, has_segments, tidy_path
    from millstream.cli.stored_batches import end_offset, stored_batches
    from millstream.runtime.os_disk import OsDisk

    disk = OsDisk()
    directory = tidy_path(given)
    check_directory(disk, directory)
    if not has_segments(disk, directory):
        raise UnusablePathError(
            f"{directory}: not a partition directory, it has no segments; give the directory of one"
            " partition, such as data/topic-0"
        )
    check_files(disk, directory)
    found = stored_batches(disk, directory, from_offset=offset)
    is_empty = True
    for line in islice(
        _records(found, offset) if records else (one.describe() for one in found), limit
    ):
        typer.echo(line)
        is_empty = False
    if is_empty:
        end = end_offset(disk, directory)
        complain(f"no batch at or after offset {offset}: the log ends at {end}")


def _records(found: "Iterator[StoredBatch]", from_offset: int) -> Iterator[str]:
    """One item per record, the first of a batch preceded by its batch's line."""
    for batch in found:
        above = f"{batch.describe()}\n"
        for record in batch.records():
            if record.offset >= from_offset:
                yield above + ("  " + _marker(record) if batch.is_control else _line(record))
                above = ""


def _line(record: "StoredRecord") -> str:
    line = (
        f"  {record.offset} time {record.timestamp_ms} "
        f"key {_text(record.key)} value {_text(record.value)}"
    )
    if record.headers:
        headers = ", ".join(f"{_text(key)}: {_text(value)}" for key, value in record.headers)
        line += f" headers {{{headers}}}"
    return line


def _marker(record: "StoredRecord") -> str:
    """The type of a control record is in bytes 2 and 3 of its key."""
    kind = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    name = {0: "abort", 1: "commit"}.get(kind, f"control {kind}")
    return f"{record.offset} time {record.timestamp_ms} {name} marker"


def _text(data: bytes | None) -> str:
    """Quoted if it is readable text, else hexadecimal; long ones are cut."""
    if data is None:
        return "null"
    head = data[:TEXT_LENGTH_MAX]
    rest = f"... ({len(data)} bytes)" if len(data) > len(head) else ""
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = ""
    return (repr(text) if text.isprintable() and (text or not head) else f"0x{head.hex()}") + rest
