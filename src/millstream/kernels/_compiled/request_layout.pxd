# Frames, request headers and Produce: where fields are, and from which version on. Constants only:
# there is no module behind it. `kernels/request_layout.py` has the same names for plain Python; a
# test compares the two.

cdef enum:
    # A frame begins with its size, which does not count itself. Then a request's header.
    FRAME_SIZE_BYTES = 4
    API_KEY_AT = 0
    API_VERSION_AT = 2
    CORRELATION_ID_AT = 4
    CLIENT_ID_SIZE_AT = 8
    CLIENT_ID_AT = 10
    NULL_SIZE = -1  # of a string, bytes or an array
    HEADER_TAGS_MAX = 100  # tagged fields of a request's header
    TOPIC_ID_BYTES = 16
    INT16_BYTES = 2
    INT32_BYTES = 4
    INT64_BYTES = 8

cdef enum:
    PRODUCE_KEY = 0
    PRODUCE_VERSION_MIN = 3
    PRODUCE_LOG_START_FROM = 5
    PRODUCE_RECORD_ERRORS_FROM = 8
    PRODUCE_FLEXIBLE_FROM = 9
    PRODUCE_TOPIC_IDS_FROM = 13
    PRODUCE_VERSION_MAX = 13

cdef enum:
    ACKS_ALL = -1
    ACKS_NONE = 0
    ACKS_LEADER = 1

cdef enum:
    # Where each field of a partition in a Produce response begins.
    ANSWER_ERROR_AT = 4
    ANSWER_BASE_OFFSET_AT = 6
    ANSWER_LOG_START_AT = 22
