"""How a log maintains its slot: the limits inside which an append may take the fast path.

The connection core appends to a slot without calling the log. So the slot must know beforehand
where that would be wrong: where the segment must roll, a batch must be stamped or compressed again,
a flush is due, or the epoch is new. There `allows_fast_path` is False, or a limit is passed, and
the request takes the slow path, `Log.append_as_leader`, which sets the limits again.
"""

from typing import TYPE_CHECKING
from zlib import crc32

from millstream.kernels.compression import Codec
from millstream.kernels.slots import PartitionSlot
from millstream.model.ids import LeaderEpoch, Offset
from millstream.model.limits import OFFSET_MAX, SEGMENT_OFFSET_SPAN_MAX, SEGMENT_POSITION_MAX
from millstream.storage import names
from millstream.storage.config import FOREVER, LogConfig, TimestampType
from millstream.storage.segments.segment import Segment

if TYPE_CHECKING:

    class LogSlot(PartitionSlot):
        """The kernel's class, whose numbers are offsets here."""

        log_start: Offset
        log_end: Offset
        high_watermark: Offset

else:
    LogSlot = PartitionSlot


def age_limit_ms(config: LogConfig, active: Segment) -> int:
    """How old a segment may get by its records' time; FOREVER or more is no limit."""
    limit_ms = config.segment_ms - _jitter_ms(config, active)
    if config.cleanup_compact:  # only a closed segment can be cleaned in time
        limit_ms = min(limit_ms, config.max_compaction_lag_ms)
    return limit_ms


def _jitter_ms(config: LogConfig, active: Segment) -> int:
    """What this segment rolls earlier than others: a number between 0 and `segment.jitter.ms`.

    Derived from its name and not random, so that it is the same whenever it is computed.
    """
    width_ms = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(active.path(names.LOG).encode()) * width_ms >> 32


def set_limits(
    slot: PartitionSlot, config: LogConfig, active: Segment, latest_epoch: LeaderEpoch
) -> None:
    """Set what the fast path may append, after an append to `active` on the slow path."""
    first_ms, limit_ms = active.first_batch_timestamp, age_limit_ms(config, active)
    is_timed = limit_ms >= FOREVER or (first_ms is not None and first_ms >= 0)
    # 0 where the segment ages by the clock: then every append checks whether it is old.
    slot.position_max = min(config.segment_bytes, SEGMENT_POSITION_MAX) if is_timed else 0
    slot.offset_max = min(active.base_offset + SEGMENT_OFFSET_SPAN_MAX, OFFSET_MAX - 1)
    slot.message_bytes_max = config.max_message_bytes
    slot.timestamp_after_max_ms = config.timestamp_after_max_ms
    slot.timestamp_before_max_ms = config.timestamp_before_max_ms
    slot.needs_key = config.cleanup_compact
    slot.tail_file = active.log
    slot.roll_timestamp_ms = (
        FOREVER if limit_ms >= FOREVER or first_ms is None else min(first_ms + limit_ms, FOREVER)
    )
    slot.allows_fast_path = (
        is_timed
        and active.size_bytes > 0
        and slot.leader_epoch == latest_epoch
        and config.timestamp_type is TimestampType.CREATE_TIME
        and config.compression in (None, Codec.NONE)
        and config.flush_messages >= FOREVER
    )
