# Fetch: from which version on a field is there. Constants only: there is no module behind it. Only
# the compiled kernels read and write Fetch; its parity tests compare them with the broker's own.

cdef enum:
    LOG_START_FROM = 5
    SESSIONS_FROM = 7
    LEADER_EPOCH_FROM = 9
    RACK_FROM = 11  # and the preferred replica of a response
    FLEXIBLE_FROM = 12
    LAST_EPOCH_FROM = 12
    TOPIC_IDS_FROM = 13
    REPLICA_STATE_FROM = 15

cdef enum:
    # The tagged fields of a follower's request, as a whole: one field with an id, an epoch and no
    # tagged fields of its own.
    REPLICA_STATE_TAG = 1
    REPLICA_STATE_BYTES = 13
    REPLICA_ID_AT = 3
    REPLICA_EPOCH_AT = 7
    REPLICA_TAGS_AT = 15
    TAGS_BYTES = 16
