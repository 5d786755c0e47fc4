"""Record batches v2 as numbers: where fields begin, bits, and columns of what kernels return.

For the plain twins. The compiled kernels have the same names as C constants in
`_compiled/batch_layout.pxd`, and a test compares the two.
"""

from typing import Final

# Where each field of the header begins. The CRC covers everything from the attributes on.
BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
ATTRIBUTES_LOW_AT: Final = 22
"""The byte of the attributes that has all bits in use."""
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61

UNCOUNTED_BYTES: Final = 12
"""Base offset and length themselves, which the length does not count."""
MAGIC_END: Final = 17
"""So many bytes are needed to know the format."""
OLD_FORMAT_BYTES_MIN: Final = 26
"""The smallest message of the formats before 2, which the magic byte distinguishes."""
MAGIC_V2: Final = 2

# Bits of the attributes, and the largest codec.
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
CODEC_MAX: Final = 4

# Columns of the row of a walked batch. LAST_OFFSET is inclusive.
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
LEADER_EPOCH: Final = 4
ATTRIBUTES: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
BASE_SEQUENCE: Final = 10
RECORD_COUNT: Final = 11
ROW_FIELDS: Final = 12
ROW_BYTES: Final = 96

# Columns of the span of a located record; -1 stands for null.
START: Final = 0
STOP: Final = 1
OFFSET_DELTA: Final = 2
TIMESTAMP_DELTA: Final = 3
KEY_START: Final = 4
KEY_BYTES: Final = 5
VALUE_BYTES: Final = 6
SPAN_FIELDS: Final = 7
SPAN_BYTES: Final = 56

# Records.
INT_VARINT_BYTES_MAX: Final = 5
LONG_VARINT_BYTES_MAX: Final = 10
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key length, value length and header count, a byte each."""
NULL_SIZE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences wrap from the largest int32 to zero."""
