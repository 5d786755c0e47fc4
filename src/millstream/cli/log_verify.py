"""`millstream log verify`: the offline scan of partitions, as a table and an exit code."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli.failure import (
    EXIT_PROBLEMS,
    EXIT_USAGE,
    complain,
    ending_when_unread,
    unusable_paths,
)

if TYPE_CHECKING:
    from millstream.storage.scan.partition_scan import ScanReport

NOTES_MAX: Final = 10
"""Shown individually: a killed Kafka leaves two per partition, and they are all alike."""
CONSOLE_COLUMNS: Final = 1_000
"""Wider than any row: a name is never cut or wrapped, on a terminal or in a pipe."""

Directories = Annotated[
    list[str],
    typer.Argument(metavar="DIR", help="Partition directories, or whole log directories."),
]


def verify(directories: Directories) -> None:
    """Check every batch, index and checkpoint of partitions. Read-only.

    Exit code 0 when everything is valid, 1 when there are problems, 2 when a
    DIR cannot be checked. A note is something unusual that the next start of
    the broker handles.

    Stop the broker first: a log that is being written to can end in a
    truncated batch. So can the log of a broker that was killed, until its next
    start repairs it.
    """
    check = _Check()
    for given in directories:
        check.check(given)
    with ending_when_unread():
        check.print_report()
    if check.is_incomplete:
        raise typer.Exit(EXIT_USAGE)
    if check.problem_count:
        raise typer.Exit(EXIT_PROBLEMS)


class _Check:
    """What was checked so far. A directory that cannot be checked is reported and skipped."""

    def __init__(self) -> None:
        from millstream.runtime.os_disk import OsDisk

        self._disk = OsDisk()
        self._partitions: dict[str, ScanReport] = {}
        self._log_directories: dict[str, ScanReport] = {}
        self.is_incomplete = False

    @property
    def _reports(self) -> "list[ScanReport]":
        return [*self._log_directories.values(), *self._partitions.values()]

    @property
    def problem_count(self) -> int:
        return sum(report.problem_count for report in self._reports)

    def check(self, given: str) -> None:
        from millstream.cli.partitions import check_files, partition_directories, tidy_path
        from millstream.storage.scan.partition_scan import scan_checkpoints

        with unusable_paths(self._miss):
            path = tidy_path(given)
            partitions, is_log_directory = partition_directories(self._disk, path)
            for partition in partitions:
                with unusable_paths(self._miss):
                    self._scan(partition)
            if is_log_directory:
                check_files(self._disk, path)
                self._log_directories[path] = scan_checkpoints(self._disk, path)

    def _scan(self, partition: str) -> None:
        from millstream.cli.partitions import check_files
        from millstream.storage.scan.partition_scan import scan_partition

        if partition not in self._partitions:
            check_files(self._disk, partition)
            self._partitions[partition] = scan_partition(self._disk, partition)

    def _miss(self, reason: str) -> None:
        complain(reason)
        self.is_incomplete = True

    def print_report(self) -> None:
        """The table and everything found, on stdout; nothing when nothing could be checked."""
        if self._partitions:
            _show(self._partitions)
        elif not self._log_directories:
            return
        for report in self._reports:
            for problem in report.problems:
                typer.echo(f"problem: {problem}")
        notes = [note for report in self._reports for note in report.notes]
        for note in notes[:NOTES_MAX]:
            typer.echo(f"note: {note}")
        if len(notes) > NOTES_MAX:
            typer.echo(f"note: and {len(notes) - NOTES_MAX:,} more")
        found = f"problems: {self.problem_count:,}" if self.problem_count else "no problems"
        typer.echo(f"{_count(len(self._partitions))}, {found}")


def _count(partitions: int) -> str:
    if not partitions:
        return "no partitions"
    return f"{partitions:,} partition{'' if partitions == 1 else 's'} checked"


def _show(reports: "dict[str, ScanReport]") -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("partition", no_wrap=True)
    for name in ("segments", "batches", "records", "offsets", "size", "problems"):
        table.add_column(name, justify="right", no_wrap=True)
    for path, report in reports.items():
        segments = report.segments
        table.add_row(
            Text(path.rpartition("/")[2] or path),  # a name is no markup
            f"{len(segments):,}",
            f"{sum(one.batch_count for one in segments):,}",
            f"{sum(one.record_count for one in segments):,}",
            _offsets(report),
            decimal(sum(one.size_bytes for one in segments)),
            f"{report.problem_count:,}" if report.problem_count else "none",
            style="red" if report.problem_count else None,
        )
    console = Console(width=CONSOLE_COLUMNS)
    with console.capture() as captured:  # on a closed pipe Rich would exit with code 1
        console.print(table)
    typer.echo(captured.get(), nl=False)


def _offsets(report: "ScanReport") -> str:
    """`[first, end)`; the end is exclusive, as everywhere."""
    if not report.segments:
        return "-"
    return f"[{report.segments[0].base_offset}, {report.segments[-1].last_offset + 1})"
