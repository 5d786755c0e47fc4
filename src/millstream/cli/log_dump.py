"""`millstream log dump`: the batches of a partition, and their records, as readable lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.failure import EXIT_PROBLEMS, EXIT_USAGE, refuse, refusing_os_errors

if TYPE_CHECKING:
    from millstream.cli.stored_batches import StoredBatch

Directory = Annotated[str, typer.Argument(metavar="PARTITION_DIR")]
FromOffset = Annotated[
    int | None, typer.Option("--offset", min=0, help="Begin with the batch that holds it.")
]
WithRecords = Annotated[bool, typer.Option("--records", help="Show the records too.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Stop after that many batches, or records if shown.")
]


def dump(
    directory: Directory,
    offset: FromOffset = None,
    records: WithRecords = False,
    limit: Limit = None,
) -> None:
    """Show the batches of a partition, one line each. Reads only.

    Exit code 1 when a batch is damaged or cut: what comes before it was shown.
    """
    from itertools import islice

    from millstream.cli.partitions import check_directory, is_partition
    from millstream.cli.stored_batches import DamagedBatch, stored_batches
    from millstream.runtime.os_disk import OsDisk

    disk = OsDisk()
    directory = directory.rstrip("/") or "/"
    with refusing_os_errors():
        check_directory(disk, directory)
        if not is_partition(disk, directory):
            refuse(f"{directory}: not a partition directory, no segments in it")
        found = stored_batches(disk, directory, from_offset=offset)
        lines = _records(found, offset or 0) if records else _batches(found)
        try:
            shown = 0
            for line, counts in _limited(lines, limit):
                typer.echo(line)
                shown += counts
        except DamagedBatch as error:
            typer.echo(f"millstream: {error}", err=True)
            raise typer.Exit(EXIT_PROBLEMS) from None
