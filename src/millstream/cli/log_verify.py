"""`millstream log verify`: the offline scan of partitions, as a table and an exit code."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.failure import EXIT_PROBLEMS, refusing_os_errors

if TYPE_CHECKING:
    from millstream.storage.scan import ScanReport

Directories = Annotated[
    list[str],
    typer.Argument(metavar="DIR...", help="Partition directories, or whole log directories."),
]


def verify(directories: Directories) -> None:
    """Check every batch, index and epoch entry of partitions. Reads only.

    Exit code 0 when everything holds, 1 when there are problems, 2 when a DIR cannot be checked.
    Stop the broker first: a log that is being written to can show a cut batch at its end, as one
    that was killed does until its next start repairs it.
    """
    from millstream.cli.partitions import partition_directories
    from millstream.runtime.os_disk import OsDisk
    from millstream.storage.scan import scan_partition

    disk = OsDisk()
    with refusing_os_errors():
        paths = [
            path for given in directories for path in partition_directories(disk, _tidy(given))
        ]
        reports = {path: scan_partition(disk, path) for path in dict.fromkeys(paths)}
    _show(reports)
    problems = [problem for report in reports.values() for problem in report.problems]
    for problem in problems:
        typer.echo(f"problem: {problem}")
    told = f"{len(reports)} partition{'' if len(reports) == 1 else 's'}"
    if problems:
        typer.echo(f"{told} checked, problems: {len(problems)}")
        raise typer.Exit(EXIT_PROBLEMS)
    typer.echo(f"{told} checked, no problems")


def _tidy(path: str) -> str:
    return path.rstrip("/") or "/"


def _show(reports: "dict[str, ScanReport]") -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    table = Table()
    table.add_column("partition", overflow="fold")
    for name in ("segments", "batches", "records", "offsets", "size", "problems"):
        table.add_column(name, justify="right", no_wrap=True)
    for path, report in reports.items():
        segments = report.segments
        table.add_row(
            path.rpartition("/")[2] or path,
            f"{len(segments):,}",
            f"{sum(one.batch_count for one in segments):,}",
            f"{sum(one.record_count for one in segments):,}",
            _offsets(report),
            decimal(sum(one.size_bytes for one in segments)),
            f"{len(report.problems)}" if report.problems else "none",
            style="red" if report.problems else None,
        )
    Console().print(table)


def _offsets(report: "ScanReport") -> str:
    """`[first, end)` of what is there; the end is exclusive, as everywhere."""
    if not report.segments:
        return "-"
    return f"[{report.segments[0].base_offset}, {report.segments[-1].last_offset + 1})"
