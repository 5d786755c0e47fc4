"""A tour of the log: a million records on a real disk, a kill -9 in the middle, nothing lost.

    python examples/log_tour.py

Two partitions in a temporary directory: `events`, plain records that retention shortens, and
`profiles`, upserts that compaction thins out to the newest of each user. What a record holds
follows from its offset, so every check knows what must be there. The exit code is 0 only if all
of them found it.
"""

import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from rich.console import Console
from rich.filesize import decimal
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from millstream.kernels.columns import (
    BinaryColumn,
    Decoded,
    DecodeOptions,
    RecordColumns,
    decode,
    encode,
)
from millstream.model.errors import OffsetOutOfRange
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
from millstream.model.limits import MIB
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import system_randomness
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.sim.background import InlineBackground

EVENTS, PROFILES = TopicPartition("events", 0), TopicPartition("profiles", 0)
EVENT_COUNT, PROFILE_COUNT, USER_COUNT = 800_000, 200_000, 20_000
TOTAL = EVENT_COUNT + PROFILE_COUNT
KILL_AT = TOTAL // 2
BATCH = 1_000
"""Records per batch. Batches are atomic, so the log ends at a multiple of it whatever happens."""
VALUE_BYTES, KEY_BYTES = 100, 12
FIRST_MS = 1_700_000_000_000
"""A record's timestamp is this plus its offset."""
KEEP_BYTES = 30 * MIB

CONFIGS = {
    EVENTS: LogConfig(segment_bytes=8 * MIB, retention_ms=-1, file_delete_delay_ms=0),
    PROFILES: LogConfig(
        segment_bytes=4 * MIB, cleanup_compact=True, cleanup_delete=False, file_delete_delay_ms=0
    ),
}
VALUE_ENDS = array("i", range(0, (BATCH + 1) * VALUE_BYTES, VALUE_BYTES))
KEY_ENDS = array("i", range(0, (BATCH + 1) * KEY_BYTES, KEY_BYTES))


# -- what the records hold ---------------------------------------------------------------------


def values(name: str, first: int, count: int) -> bytes:
    """The values of some records, one after the other."""
    form = f"{name} %012d ".ljust(VALUE_BYTES - 7, ".").encode()  # %012d grows by seven
    return b"".join([form % number for number in range(first, first + count)])


def user(offset: int) -> bytes:
    return b"user %07d" % (offset * 7919 % USER_COUNT)


def batch(partition: TopicPartition, first: int) -> bytearray:
    """Records [first, first + BATCH) as one batch, ready to append."""
    keys = None
    if partition == PROFILES:
        data = b"".join([user(offset) for offset in range(first, first + BATCH)])
        keys = BinaryColumn(offsets=KEY_ENDS, data=data)
    columns = RecordColumns(
        rows=BATCH,
        timestamps=array("q", range(FIRST_MS + first, FIRST_MS + first + BATCH)),
        keys=keys,
        values=BinaryColumn(offsets=VALUE_ENDS, data=values(partition.topic, first, BATCH)),
    )
    return encode(columns, 0, BATCH)


# -- the log's side ----------------------------------------------------------------------------


def open_logs(directory: str) -> tuple[LogManager, StartReport]:
    """Open the log directory as a broker does, creating the partitions where they are missing."""
    dependencies = StorageDependencies(
        OsDisk(), SystemClock(), system_randomness(), InlineBackground()
    )
    manager = LogManager(dependencies, [directory])
    report = manager.start(lambda partition, _topic_id: CONFIGS[partition])
    for number, (partition, config) in enumerate(CONFIGS.items()):
        manager.create(partition, TopicId(UUID(int=number + 1)), config)
    return manager, report


def write(manager: LogManager, tell: Callable[[int, int], None]) -> None:
    """Append until both logs are full; `tell` hears both ends whenever they are durable."""
    events, profiles = manager.get(EVENTS), manager.get(PROFILES)
    epoch = LeaderEpoch(0)
    while events.log_end < EVENT_COUNT or profiles.log_end < PROFILE_COUNT:
        for _ in range(16):
            if events.log_end < EVENT_COUNT:
                events.append_as_leader(batch(EVENTS, events.log_end), leader_epoch=epoch)
        for _ in range(4):
            if profiles.log_end < PROFILE_COUNT:
                profiles.append_as_leader(batch(PROFILES, profiles.log_end), leader_epoch=epoch)
        for log in (events, profiles):
            log.flush()
            log.set_high_watermark(log.log_end)
        tell(events.log_end, profiles.log_end)


def slices(log: Log, start: Offset) -> Iterator[Decoded]:
    """Everything from `start` on, decoded to columns, a few megabytes at a time."""
    while start < log.log_end:
        data = log.read(start, size_max=4 * MIB, isolation=Isolation.HIGH_WATERMARK).data.read()
        decoded = decode(data, 0, len(data), DecodeOptions(first_offset=start))
        start = Offset(decoded.next_offset)
        yield decoded


def value_bytes(part: Decoded) -> bytes:
    """All values, one after the other."""
    column = part.columns.values
    return bytes(column.data) if column is not None else b""


# -- the tour ----------------------------------------------------------------------------------


class Done(NamedTuple):
    """What a step did, for its row in the table."""

    what: str
    records: int = 0
    size_bytes: int = 0


def check(holds: bool, what: str) -> None:  # noqa: FBT001
    """Stop the tour unless it holds."""
    if not holds:
        sys.exit(f"WRONG: {what}")


def write_and_kill(directory: str, bar: Progress) -> tuple[Done, list[int]]:
    """Another process writes and tells its durable ends; at half of the way it is killed."""
    task = bar.add_task("writing, until killed", total=TOTAL)
    command = [sys.executable, __file__, "--write", directory]
    ends = [0, 0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout or ():
            ends = [int(word) for word in line.split()]
            bar.update(task, completed=sum(ends))
            if sum(ends) >= KILL_AT:
                time.sleep(0.02)  # into the middle of its next appends
                writer.send_signal(signal.SIGKILL)
    bar.remove_task(task)
    check(writer.returncode == -signal.SIGKILL, f"the writer ended with {writer.returncode}")
    summary = f"killed after {ends[0]:,} events and {ends[1]:,} profiles were acknowledged"
    return Done(summary, sum(ends)), ends


def recover(directory: str, acknowledged: list[int]) -> tuple[Done, LogManager]:
    """Open what the killed process left: all it acknowledged is there."""
    manager, report = open_logs(directory)
    loaded = report.loaded.values()
    ends = [manager.get(EVENTS).log_end, manager.get(PROFILES).log_end]
    for end, promised in zip(ends, acknowledged, strict=True):
        check(end >= promised and end % BATCH == 0, f"log ends at {end}, promised was {promised}")
    count = sum(one.recovered_segments for one in loaded)
    summary = f"{count} segments re-read; found {ends[0]:,} and {ends[1]:,} records"
    return Done(summary, size_bytes=sum(one.recovered_bytes for one in loaded)), manager


def write_the_rest(manager: LogManager, bar: Progress) -> Done:
    """The same writing again, in this process, from where the logs end."""
    there = manager.get(EVENTS).log_end + manager.get(PROFILES).log_end
    task = bar.add_task("writing the rest", total=TOTAL, completed=there)
    write(manager, lambda *ends: bar.update(task, completed=sum(ends)))
    bar.remove_task(task)
    size = sum(log.size_bytes for log in manager)
    return Done(f"{TOTAL:,} records in {decimal(size)}", TOTAL - there, size)


def read_everything(manager: LogManager) -> Done:
    """Every record of both logs against what its offset says it holds."""
    for partition in CONFIGS:
        log = manager.get(partition)
        expected = int(log.log_start)
        for part in slices(log, log.log_start):
            rows = part.columns.rows
            offsets = array("q", range(expected, expected + rows))
            check(bytes(part.offsets) == offsets.tobytes(), f"offsets of {partition}")
            found = value_bytes(part)
            check(found == values(partition.topic, expected, rows), f"{partition} at {expected}")
            expected += rows
        check(expected == log.log_end, f"{partition} ends at {expected}, not {log.log_end}")
    return Done("every offset and value is right", TOTAL, sum(log.size_bytes for log in manager))


def look_up(manager: LogManager) -> Done:
    """Single records by offset and by time, spread over the log."""
    log, asked = manager.get(EVENTS), range(0, EVENT_COUNT, 7919)
    for number in asked:
        place = log.find_timestamp(TimestampMs(FIRST_MS + number))
        check(place is not None and place.offset == number, f"record of time {number}")
        data = log.read(Offset(number), size_max=1, isolation=Isolation.HIGH_WATERMARK).data.read()
        part = decode(data, 0, len(data), DecodeOptions(first_offset=number, end_offset=number + 1))
        check(value_bytes(part) == values("events", number, 1), f"record {number}")
    return Done(f"{len(asked):,} records found by timestamp, then by offset", len(asked))


def retain(manager: LogManager) -> Done:
    """Size-based retention: the oldest segments go, what stays can still be read."""
    log = manager.get(EVENTS)
    log.config = replace(log.config, retention_bytes=KEEP_BYTES)
    before = log.size_bytes
    removed = manager.run_retention()
    check(removed > 0 and KEEP_BYTES <= log.size_bytes < before, "retention")
    try:
        log.read(Offset(log.log_start - 1), size_max=1, isolation=Isolation.HIGH_WATERMARK)
        check(holds=False, what="a record below the log start can be read")
    except OffsetOutOfRange:
        pass
    first = next(slices(log, log.log_start)).offsets
    check(bytes(first)[:8] == array("q", [log.log_start]).tobytes(), "first record kept")
    summary = f"{removed} segments removed, events begin at {log.log_start:,}"
    return Done(summary, size_bytes=log.size_bytes)


def compact(manager: LogManager) -> Done:
    """The newest record of every user stays."""
    log = manager.get(PROFILES)
    log.roll()  # what is still being written is never compacted,
    log.flush()  # nor what a restart after a crash would have to look at again:
    manager.store_checkpoints()  # a broker does this once a minute
    before = log.size_bytes
    manager.run_cleaner()
    newest = {user(offset): offset for offset in range(PROFILE_COUNT)}
    kept: list[int] = []
    for part in slices(log, log.log_start):
        offsets = array("q", bytes(part.offsets))
        expected = b"".join([values("profiles", offset, 1) for offset in offsets])
        check(value_bytes(part) == expected, "values after compaction")
        kept += offsets
    check(kept == sorted(newest.values()), f"{len(kept)} profiles of {USER_COUNT} users left")
    summary = f"{PROFILE_COUNT:,} upserts became {len(kept):,} records, the newest of every user"
    return Done(f"{summary}; {decimal(before)} before", PROFILE_COUNT, log.size_bytes)


def restart(directory: str, manager: LogManager) -> Done:
    """A clean stop and start recovers nothing; an offline scan finds nothing wrong."""
    ends = {log.partition: (log.log_start, log.log_end) for log in manager}
    manager.close()
    for partition in CONFIGS:
        problems = scan_partition(OsDisk(), f"{directory}/{partition}").problems
        check(not problems, f"{problems}")
    manager, report = open_logs(directory)
    recovered = sum(one.recovered_segments for one in report.loaded.values())
    check(recovered == 0, f"{recovered} segments recovered after a clean stop")
    check({log.partition: (log.log_start, log.log_end) for log in manager} == ends, "ends")
    manager.close()
    return Done("files verified, reopened without recovery")


def tour(directory: str) -> None:
    """All steps, with a table at the end."""
    console = Console()
    table = Table("step")
    for name in ("records", "size", "time", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    started = last = time.perf_counter()

    def note(step: str, done: Done) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds, last = now - last, now
        rate = f"{done.records / seconds:,.0f}/s" if done.records else ""
        records = f"{done.records:,}" if done.records else ""
        size = decimal(done.size_bytes) if done.size_bytes else ""
        table.add_row(step, records, size, f"{seconds:.2f} s", rate)
        console.print(f"[green]ok[/] {step}: {done.what}", soft_wrap=True)

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        done, acknowledged = write_and_kill(directory, bar)
        note("write, kill -9", done)
        done, manager = recover(directory, acknowledged)
        note("recover", done)
        note("write the rest", write_the_rest(manager, bar))
        note("read everything", read_everything(manager))
        note("look up", look_up(manager))
        note("retention", retain(manager))
        note("compaction", compact(manager))
        note("restart", restart(directory, manager))
    console.print(table)
    console.print(f"everything matched, in {time.perf_counter() - started:.1f} s")


def main() -> None:
    """The tour, or with `--write DIRECTORY` the process that it kills."""
    if sys.argv[1:2] == ["--write"]:
        manager, _ = open_logs(sys.argv[2])
        write(manager, lambda *ends: print(*ends, flush=True))
    else:
        with tempfile.TemporaryDirectory(prefix="millstream-tour-") as directory:
            tour(directory)


if __name__ == "__main__":
    main()
