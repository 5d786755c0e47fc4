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

ROOM_PROBE_BYTES: Final = MIB
"""What must fit into a full log directory before it is usable again: about the largest batch that
a topic takes by default. Twice that must be free."""

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

LOGS_PER_SYNC_MAX: Final = 256
"""Logs flushed or created together: each holds a descriptor or two until the sync is through."""

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Kafka's own: partitions that one CreateTopics or CreatePartitions may make; each is a directory
with several files, all synced before the answer."""

PARTITIONS_PER_TOPIC_MAX: Final = 100_000
"""Ten requests' worth. Every Metadata answer for the topic names each of them."""

ADOPTED_HOLES_MAX: Final = 1_000
"""Partitions missing between those found of a foreign topic: one stray directory named
`topic-2000000000` must not create two billion partitions."""

CONFIG_KEYS_PER_RESOURCE_MAX: Final = 1_000
"""Keys that one change of a topic's or broker's settings may name: several times those there are,
and checked in one step, while no other request is served."""

METRIC_SERIES_MAX: Final = 100_000
"""Of one metric with a label per partition or group: clients choose how many groups there are, and
the scraper must be able to take the response."""

PRODUCER_ID_BLOCK: Final = 1_000
"""Kafka's size of a block of producer ids: a kill wastes at most as many, and a write serves as
many producers."""

CLOSING_GRACE_S: Final = 5.0
"""A connection that is being closed may take this long to accept what was answered before."""

REQUEST_MEMORY_BYTES: Final = 512 * MIB
"""What requests may take in memory (`queued.max.request.bytes`), unless set: one may be
`socket.request.max.bytes` large, and a thousand clients that send half of one each must not fill
the memory."""

REQUEST_BYTES_MIN: Final = 4 * KIB
"""The lowest `socket.request.max.bytes`: brokers can prove themselves to each other with requests
of this size, and an administrator can ask for the metadata."""

IN_FLIGHT_REQUESTS_MAX: Final = 256
"""Requests of one connection that wait for responses; more stay in its buffer until some were sent.
"""

ITERATION_SERVING_S: Final = 0.004
"""Time that handlers of requests have in one iteration of the event loop, for all connections
together. A produce with acks=all takes the loops of several brokers some six iterations, so at this
it stays far below 100 ms; an iteration costs fifty microseconds, a little more than 1% of it."""

TURN_SERVING_S: Final = 0.001
"""Time of one connection in it before the others have their turns, unless a single request takes
longer: a client that comes when fifty have just begun waits for one turn of each."""

TASK_SERVING_S: Final = 0.0005
"""What a request that goes on as a task is charged in advance, as much as many take: the loop runs
all tasks that were made in an iteration before the next one, so there must not be hundreds."""

UNSENT_ANSWER_BYTES_MAX: Final = MIB
"""Answers that a connection has not taken, whether in order or behind one that is not ready: at
that it is not read from, and what it sent before is not served."""

WORKER_REQUESTS_MAX: Final = 2
"""Jobs of large requests in worker threads at once. Computations have threads of their own; the
rest shares a pool of four, in which flushes and metadata need threads too."""

MESSAGE_ITEMS_MAX: Final = 500_000
"""Structs and strings in the arrays of one message, however large its frame, and tagged fields:
more than twice the partitions of the largest clusters, which a response may describe. Decoded, an
item takes up to 80 times the bytes it came in and some microseconds: 100 MB of empty ones would
take 8 GB."""

REQUEST_ITEMS_MAX: Final = 250_000
"""The same of a request that a broker serves, where numbers in arrays count like structs: enough to
name every partition of the largest clusters (200,000) with its topic. To decode, serve and answer
so many takes a second or two of computing, a hundred megabytes, and nothing that cannot be
interrupted for more than some ten milliseconds, so that other clients hardly notice."""

HEADER_TAGS_MAX: Final = 100
"""Tagged fields of a request's header, of which Kafka has defined none in seven years."""

GROUP_MEMBERS_BYTES_MAX: Final = 8 * MIB
"""What all members of a group keep in memory. Its record, which has one of the protocols of each,
is limited by `message.max.bytes`, 1 MiB unless set: with more, a group could not have an
assignment anyway."""

GROUPS_MEMBERS_BYTES_MAX: Final = 128 * MIB
"""The same of all groups of a broker: a hundred thousand ordinary members."""

FETCH_SESSIONS_PARTITIONS_MAX: Final = 200_000
"""Partitions in all fetch sessions of a broker, at 350 bytes each: many times what a broker has,
for its followers and for hundreds of consumers."""

FETCH_SESSION_PARTITIONS_MAX: Final = 50_000
"""Partitions in one consumer's session: no client may fill the cache alone. One with more sends
them with every request."""

LOG_INTERVAL_S: Final = 10.0
"""Log lines of one kind that one client causes are at least this far apart: often enough to see
that it goes on."""

LOG_CLIENTS_PER_INTERVAL_MAX: Final = 20
"""Addresses that have lines of one kind in an interval. One user may have thousands of them; a
reader of the log learns nothing more from their lines than from twenty."""

LOG_ONCE_INTERVAL_S: Final = 3600.0
"""For what a client would repeat for as long as it runs, such as requests that are for brokers."""

LOG_ONCE_CLIENTS_MAX: Final = 200
"""Addresses that have such a line in an hour."""

LOG_CHANGES_PER_INTERVAL_MAX: Final = 200
"""Lines of one kind about changes that clients asked for (topics, settings): a script that creates
hundreds of topics is ordinary, a client that changes a setting a thousand times a second is not."""

LOG_DEBUG_PER_INTERVAL_MAX: Final = 100
"""Lines of level DEBUG of one kind and client: who looks for an error needs more than one."""

LOG_LINE_KINDS_MAX: Final = 256
"""Kinds of lines counted at a time: more than the program has. Those of libraries may have varying
text; beyond this they are counted together."""

LOG_FLOOD_INTERVAL_S: Final = 300.0
"""Of the limit for lines of any kind: recovery and its many lines are over by then."""

LOG_FLOOD_LINES_MAX: Final = 5_000
"""Lines of any kind in that time, whatever causes them: one for each partition of a large broker
that recovers; an error that repeats itself thousands of times a second fills no disk."""

REQUEST_MEMORY_WAIT_S: Final = 10.0
"""How long a request waits for memory, or memory that others wait for is held by a client that
does not go on: a third of what clients wait for an answer by default."""
