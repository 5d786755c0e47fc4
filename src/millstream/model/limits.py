"""Every limit has a name and a reason. Sizes in bytes, times in milliseconds."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

BATCH_BYTES_MAX: Final = 1024 * MIB
"""No batch on disk or wire may claim more: offsets in `.index` are 31-bit file positions."""

OFFSET_MAX: Final = 2**63 - 1
"""The largest log end: offsets are signed 64-bit numbers, and the end comes after the last one."""

SEGMENT_POSITION_MAX: Final = 2**31 - 1
"""A position in `.index` is a signed 32-bit number, so a segment must end below this."""

SEGMENT_OFFSET_SPAN_MAX: Final = 2**31 - 1
"""Relative offsets in `.index` and `.timeindex` are signed 32-bit numbers."""

DECOMPRESSED_BATCH_BYTES_MAX: Final = 64 * MIB
"""Output bound for one batch, against decompression bombs; producers cap requests far below."""

OPEN_FILES_MAX: Final = 512
"""Segment files held open at once by one process, whatever the number of segments."""

INDEX_CACHE_BYTES_MAX: Final = 64 * MIB
"""Indexes of closed segments kept in memory; the least recently used go first."""

CLEANER_KEY_MAP_BYTES_MAX: Final = 128 * MIB
"""Kafka's `log.cleaner.dedupe.buffer.size`: five million keys in one cleaning."""

PRODUCER_BATCHES_KEPT: Final = 5
"""Batches remembered per producer, as `max.in.flight.requests.per.connection` allows (I-20)."""

TOPIC_NAME_LENGTH_MAX: Final = 249
"""Kafka's limit: with `-partition` and a suffix it still fits a 255-byte file name."""

HEADERS_PER_RECORD_MAX: Final = 10_000
"""A record with more headers is an attack or a bug."""

LOGS_PER_SYNC_MAX: Final = 256
"""Logs flushed or created together: each holds a descriptor or two until the sync is through."""
