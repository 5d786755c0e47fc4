"""Frames, request headers and Produce as numbers: where fields are, from which version on.

For the plain twins. The compiled kernels have the same names as C constants in
`_compiled/request_layout.pxd`, and a test compares the two.
"""

from typing import Final

# A frame begins with its size, which does not count itself. Then a request's header.
FRAME_SIZE_BYTES: Final = 4
API_KEY_AT: Final = 0
API_VERSION_AT: Final = 2
CORRELATION_ID_AT: Final = 4
CLIENT_ID_SIZE_AT: Final = 8
CLIENT_ID_AT: Final = 10
NULL_SIZE: Final = -1
"""Of a string, bytes or an array."""
HEADER_TAGS_MAX: Final = 100
"""Tagged fields of a request's header; see `model/limits.py`."""
TOPIC_ID_BYTES: Final = 16
INT16_BYTES: Final = 2
INT32_BYTES: Final = 4
INT64_BYTES: Final = 8

PRODUCE_KEY: Final = 0
PRODUCE_VERSION_MIN: Final = 3
PRODUCE_LOG_START_FROM: Final = 5
PRODUCE_RECORD_ERRORS_FROM: Final = 8
PRODUCE_FLEXIBLE_FROM: Final = 9
PRODUCE_TOPIC_IDS_FROM: Final = 13
PRODUCE_VERSION_MAX: Final = 13

ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1

# Where each field of a partition in a Produce response begins.
ANSWER_ERROR_AT: Final = 4
ANSWER_BASE_OFFSET_AT: Final = 6
ANSWER_LOG_START_AT: Final = 22
