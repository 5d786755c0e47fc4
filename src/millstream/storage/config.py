"""What a topic's configuration means to its logs. Names follow Kafka's keys."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from millstream.kernels.compression import LEVELS, Codec
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX, MIB

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
FOREVER: Final = 2**63 - 1


class TimestampType(Enum):
    """Which clock stamps records: the producer's or the broker's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's settings as its logs see them; defaults are Kafka's."""

    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    retention_ms: int = 7 * DAY_MS
    """-1 keeps records forever."""
    retention_bytes: int = -1
    """-1 has no limit."""
    max_message_bytes: int = MIB + 12
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    min_cleanable_dirty_ratio: float = 0.5
    compression: Codec | None = None
    """None stores batches as the producer sent them."""
    compression_level: int | None = None
    decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = FOREVER
    timestamp_after_max_ms: int = HOUR_MS
    file_delete_delay_ms: int = 60_000
    producer_expiration_ms: int = DAY_MS

    def __post_init__(self) -> None:
        """Refuse settings that would otherwise fail later, on a client's append."""
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} is {value!r}; it must be an integer >= {lowest}")
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise ValueError(f"min_cleanable_dirty_ratio is {self.min_cleanable_dirty_ratio!r}")
        codec, level = self.compression, self.compression_level
        if codec is not None and not isinstance(codec, Codec):
            raise ValueError(f"compression is {codec!r}, not a Codec")
        if codec is not None and level is not None and level not in LEVELS.get(codec, ()):
            raise ValueError(f"{codec.name} has no compression level {level!r}")


_LOWEST: Final = {
    "segment_bytes": 1,
    "segment_ms": 1,
    "segment_jitter_ms": 0,
    "segment_index_bytes": 8,
    "index_interval_bytes": 0,
    "flush_messages": 1,
    "flush_ms": 0,
    "retention_ms": -1,
    "retention_bytes": -1,
    "max_message_bytes": 0,
    "delete_retention_ms": 0,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 1,
    "decompressed_batch_bytes_max": 0,
    "timestamp_before_max_ms": 0,
    "timestamp_after_max_ms": 0,
    "file_delete_delay_ms": 0,
    "producer_expiration_ms": 1,
}
"""Kafka's lower bounds, but for `segment.bytes`, which tests and its own internals take smaller."""
