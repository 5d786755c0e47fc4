"""Bits of a record batch's attributes, and the limits of its timestamps and offsets."""

from typing import Final

CODEC_MASK: Final = 0b111
LOG_APPEND_TIME_BIT: Final = 0b1000
TRANSACTIONAL_BIT: Final = 0b1_0000
CONTROL_BIT: Final = 0b10_0000
DELETE_HORIZON_BIT: Final = 0b100_0000
"""Set by compaction: the base timestamp is the time from which tombstones may go."""

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
