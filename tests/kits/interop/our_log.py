"""Our storage engine over one partition of a log directory, with its real disk and clock."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.model.ids import TopicPartition
from millstream.model.limits import INDEX_CACHE_BYTES_MAX, OPEN_FILES_MAX
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.storage.config import LogConfig, TimestampType
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.base import LogContext
from millstream.storage.log.log import Log
from millstream.storage.recovery.loader import LoadReport, load_log
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.sparse_index import IndexCache


@contextmanager
def open_log(
    directory: Path,
    topic: str,
    config: LogConfig | None = None,
    *,
    is_clean: bool,
    report: LoadReport | None = None,
) -> Iterator[Log]:
    """The log of `topic`, partition 0, in the log directory; closed in order at the end."""
    disk = OsDisk()
    owner = LogDirectory(disk, str(directory))
    owner.open()
    files = OpenFiles(disk, open_max=OPEN_FILES_MAX)
    context = LogContext(
        partition=TopicPartition(topic, 0),
        topic_id=None,
        owner=owner,
        directory=f"{directory}/{topic}-0",
        files=files,
        cache=IndexCache(bytes_max=INDEX_CACHE_BYTES_MAX),
        clock=SystemClock(),
    )
    try:
        log = load_log(context, config or LogConfig(), is_clean=is_clean, report=report)
        try:
            yield log
        finally:
            log.close()
    finally:
        files.close()
        owner.close()


def config_of(kafka: Mapping[str, str]) -> LogConfig:
    """Our settings for a topic that Kafka had with these."""
    is_append_time = kafka.get("message.timestamp.type") == "LogAppendTime"
    return LogConfig(
        segment_bytes=int(kafka.get("internal.segment.bytes", 2**30)),
        index_interval_bytes=int(kafka.get("index.interval.bytes", 4096)),
        retention_ms=-1,
        timestamp_type=(
            TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
        ),
    )
