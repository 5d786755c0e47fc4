# Record batches v2: the header's fields, the bits of its attributes, and the columns of what the
# kernels return about batches and records. Constants only: there is no module behind it.
# `kernels/batch_layout.py` has the same names for plain Python; a test compares the two.

cdef enum:
    # Where each field of the header begins. The CRC covers everything from the attributes on.
    BASE_OFFSET_AT = 0
    LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    ATTRIBUTES_LOW_AT = 22  # the byte that has all bits in use
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57
    HEADER_BYTES = 61

    UNCOUNTED_BYTES = 12  # base offset and length, which the length does not count
    MAGIC_END = 17  # so many bytes are needed to know the format
    OLD_FORMAT_BYTES_MIN = 26  # the smallest message of formats 0 and 1
    MAGIC_V2 = 2

cdef enum:
    # Bits of the attributes.
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    # Not a bit: the largest codec.
    CODEC_MAX = 4

cdef enum:
    # Columns of the row of a walked batch. LAST_OFFSET is inclusive.
    POSITION = 0
    SIZE = 1
    BASE_OFFSET = 2
    LAST_OFFSET = 3
    LEADER_EPOCH = 4
    ATTRIBUTES = 5
    BASE_TIMESTAMP = 6
    MAX_TIMESTAMP = 7
    PRODUCER_ID = 8
    PRODUCER_EPOCH = 9
    BASE_SEQUENCE = 10
    RECORD_COUNT = 11
    ROW_FIELDS = 12
    ROW_BYTES = 96

cdef enum:
    # Columns of the span of a located record; -1 stands for null.
    START = 0
    STOP = 1
    OFFSET_DELTA = 2
    TIMESTAMP_DELTA = 3
    KEY_START = 4
    KEY_BYTES = 5
    VALUE_BYTES = 6
    SPAN_FIELDS = 7
    SPAN_BYTES = 56

cdef enum:
    # Records: varints of an int32 and an int64, and the least that a record has (its length,
    # attributes, two deltas, key length, value length and header count, a byte each).
    INT_VARINT_BYTES_MAX = 5
    LONG_VARINT_BYTES_MAX = 10
    RECORD_BYTES_MIN = 7
    NULL_SIZE = -1
    SEQUENCE_MASK = 0x7FFFFFFF  # sequences wrap from the largest int32 to zero
