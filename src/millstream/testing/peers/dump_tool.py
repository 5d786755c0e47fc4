"""Runs Kafka's DumpLogSegments over files of a log, many of them in one start of the JVM."""

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from millstream.testing.peers.dump import Dump, parse_dump
from millstream.testing.peers.kafka import run_tool

MAIN_CLASS: Final = "org.apache.kafka.tools.DumpLogSegments"
DUMPED_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

# Linux takes at most 128 KB in one argument.
FILES_ARGUMENT_BYTES_MAX: Final = 100_000


class IndexCheck(Enum):
    """What to do with index files. PRINT compares each entry with the log and shows it."""

    PRINT = ()
    VERIFY = ("--verify-index-only",)
    SANITY = ("--index-sanity-check",)
    """The check by which a starting Kafka decides whether to rebuild an index."""


class Decoder(Enum):
    """Which internal topic the records belong to."""

    NONE = ()
    OFFSETS = ("--offsets-decoder",)
    TRANSACTIONS = ("--transaction-log-decoder",)
    CLUSTER_METADATA = ("--cluster-metadata-decoder",)


def dump_log(
    files: Iterable[Path],
    *,
    jars: Path,
    deep: bool = True,
    index_check: IndexCheck = IndexCheck.PRINT,
    decoder: Decoder = Decoder.NONE,
) -> Dump:
    """The tool's dump of the files; it stops at the first file it cannot read at all."""
    options = [*index_check.value, *decoder.value]
    options += ["--deep-iteration", "--print-data-log"] if deep else []
    whole = Dump()
    for chunk in _chunks(files):
        done = run_tool(jars, MAIN_CLASS, [*options, "--files", chunk])
        dump = parse_dump(done.stdout, done.stderr, done.returncode)
        whole.files.update(dump.files)
        whole.complaints += dump.complaints
        whole.gaps += dump.gaps
    return whole


def dumpable_files(directory: Path) -> list[Path]:
    """The files of a partition directory that the tool reads, in the order of their names."""
    return sorted(path for path in directory.iterdir() if path.suffix in DUMPED_SUFFIXES)


def _chunks(files: Iterable[Path]) -> Iterator[str]:
    chunk = ""
    for path in files:
        if "," in str(path):
            raise ValueError(f"the tool separates files by commas: {path}")
        if len(chunk) + len(str(path)) > FILES_ARGUMENT_BYTES_MAX:
            yield chunk
            chunk = ""
        chunk = f"{chunk},{path}" if chunk else str(path)
    if chunk:
        yield chunk
