"""Every limit of the server has a name and a reason. Sizes in bytes, times in milliseconds."""

from typing import Final

from millstream.model.limits import KIB, MIB

FRAME_BYTES_MAX: Final = MIB - 1
"""ZooKeeper's `jute.maxbuffer`: a larger request closes its connection."""

CONNECTIONS_MAX: Final = 2_000
"""A cluster on one machine needs a few dozen; each costs a descriptor and some buffers."""

SESSIONS_MAX: Final = 20_000
"""Sessions outlive their connections: clients that connect and leave must not fill the memory."""

DATA_BYTES_MAX: Final = 512 * MIB
"""All nodes together, with NODE_BYTES for each: the tree is in memory, twice while a snapshot is
made. Kafka's largest clusters kept some hundred thousand nodes of a few hundred bytes."""

NODE_BYTES: Final = 500
"""What a node takes in memory beside its path and data."""

WATCHES_PER_CONNECTION_MAX: Final = 200_000
"""One watch for every partition of a large cluster, twice."""

OUTSTANDING_PER_CONNECTION_MAX: Final = 1_000
"""Requests that wait for the disk, as ZooKeeper's `globalOutstandingLimit`; more are not read."""

OUTPUT_BYTES_MAX: Final = 32 * MIB
"""Answers and events that a client does not read; a client with more is disconnected."""

LOG_ROLL_BYTES: Final = 16 * MIB
"""When a log is closed and folded into a new snapshot: a start then reads a second's worth."""

READ_BUFFER_BYTES: Final = 256 * KIB
"""One for all connections; more at once would keep the others waiting."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""A connection that has not requested a session by then is closed."""

STOP_TIMEOUT_S: Final = 5.0
"""What is under way to the disk may take this long when the server stops."""
