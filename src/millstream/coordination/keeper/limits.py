"""Every limit of the server has a name and a reason. Sizes in bytes, times in milliseconds."""

from typing import Final

from millstream.model.limits import KIB, MIB

FRAME_BYTES_MAX: Final = MIB - 1
"""ZooKeeper's `jute.maxbuffer`: a larger request closes its connection."""

UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 4 * KIB
"""Before the proof of the secret: a connect request has 45 bytes, a proof a hundred."""

AUTHENTICATED_MAX: Final = 1_000
"""Connections with a proof of the secret. A broker has one; each costs a descriptor and buffers."""

AUTHENTICATED_PER_ADDRESS_MAX: Final = 500
"""Brokers and tools of one machine; the other half is for those of other machines."""

UNAUTHENTICATED_MAX: Final = 1_000
"""Connections without it, each with a few KiB at most; one of the address with most goes."""

UNAUTHENTICATED_PER_ADDRESS_MAX: Final = 500
"""The oldest of those that are silent goes, or of those that have asked for a session, whichever
are more. As many as a few thousand connections a second open while a busy broker proves itself:
from the same address, it has a tenth of a second for it before its connection is the oldest."""

SESSIONS_MAX: Final = 20_000
"""Sessions outlive their connections: clients that connect and leave must not fill the memory.
Only those of clients with the cluster's secret count: the others end with their connection."""

SESSIONS_PER_ADDRESS_MAX: Final = 5_000
"""A program that opens sessions in a loop leaves room for the brokers of other machines."""

EPHEMERALS_PER_SESSION_MAX: Final = 20_000
"""A broker has three. The end of a session deletes all of them in one step."""

IDENTITIES_PER_CONNECTION_MAX: Final = 8
"""The cluster's, and those of access lists for other programs; each is compared at each request."""

REFUSED_REQUESTS_MAX: Final = 100
"""A client without the secret knows it from the first answer; one that goes on is disconnected."""

DATA_BYTES_MAX: Final = 512 * MIB
"""All nodes together, with NODE_BYTES for each: the tree is in memory, twice while a snapshot is
made. Kafka's largest clusters kept some hundred thousand nodes of a few hundred bytes."""

DATA_BYTES_PER_ADDRESS_MAX: Final = DATA_BYTES_MAX // 2
"""Nodes that one address was the last to write: 400,000 of the smallest. A controller writes
almost all of a cluster's, so less would be a limit on the cluster; the other half is for the
brokers of other machines, and for the controller after it."""

NODE_BYTES: Final = 650
"""What a node takes in memory beside its path and data, as measured with 22,000 to 90,000 nodes."""

ACL_ENTRIES_MAX: Final = 32
"""Of a node's access list; each is compared at each request for the node. Brokers set one."""

ACL_IDENTITY_CHARACTERS_MAX: Final = 256
"""Of one entry: a user's name and a hash of 28 characters."""

ACL_ENTRY_BYTES: Final = 500
"""What an entry takes in memory at most; the first of a list is counted with its node."""

ACLS_SHARED_MAX: Final = 64
"""Different access lists that nodes share; almost all nodes have the cluster's."""

WATCHES_PER_CONNECTION_MAX: Final = 200_000
"""One watch for every partition of a large cluster, twice."""

WATCHES_PER_ADDRESS_MAX: Final = 1_000_000
"""Five brokers of a large cluster on one machine; some hundred bytes each."""

OUTSTANDING_PER_CONNECTION_MAX: Final = 1_000
"""Requests that wait for the disk, as ZooKeeper's `globalOutstandingLimit`; more are not read."""

UNAUTHENTICATED_OUTSTANDING_MAX: Final = 16
"""The same before the proof of the secret: a client sends a connect request and a proof."""

PENDING_BYTES_PER_CONNECTION_MAX: Final = 8 * MIB
"""Of requests that wait for the disk; more are not read. Sixteen of the largest multis."""

PENDING_BYTES_PER_ADDRESS_MAX: Final = 64 * MIB
"""The same for all connections of one address."""

OUTPUT_BYTES_MAX: Final = 32 * MIB
"""Answers and events that a client does not read; a client with more is disconnected."""

OUTPUT_BYTES_PER_ADDRESS_MAX: Final = 128 * MIB
"""The same for all connections of one address; the one that would add to it is disconnected."""

LOG_ROLL_BYTES: Final = 16 * MIB
"""When a log is closed and folded into a new snapshot: a start then reads a second's worth."""

READ_BUFFER_BYTES: Final = 256 * KIB
"""One for all connections; more at once would keep the others waiting."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""A connection that has not requested a session by then is closed."""

AUTHENTICATION_TIMEOUT_MS: Final = 30_000
"""One that has not proved to have the secret by then is closed: time for a person to type
`addauth` in ZooKeeper's shell."""

STOP_TIMEOUT_S: Final = 5.0
"""What is under way to the disk may take this long when the server stops."""
