"""What the Spark benchmark reads and writes: the same rows for both connectors, with checksums.

Values are JSON-like text of an exact length, so that compression has something to do; keys have 16
bytes. A block of rows is made once and repeated: what must come out is then known without reading.
"""

import random
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.client.admin import NewTopic, or_raise
from millstream.client.blocking import BlockingClient
from millstream.client.offsets import EARLIEST, LATEST
from millstream.model.ids import Offset, TopicPartition

BLOCK_ROWS = 10_000
"""Rows of one Arrow batch, all of one partition."""
BLOCKS = 5
"""Different blocks."""
KEY_BYTES = 16
FILL_SETTINGS = {
    # Batches of the size that busy producers send, not of the size that our writer prefers.
    "max.request.size": 128 * 1024,
    "batch.size": 128 * 1024,
    "linger.ms": 50,
    # The default level compresses more than is usual where throughput matters.
    "compression.lz4.level": 1,
}
WORDS = ("kettle", "lamp", "chair", "notebook", "bicycle", "teapot", "carpet", "mirror")


class Check(NamedTuple):
    """Checksums of a set of rows; `value_crc` and `key_crc` are sums of CRC-32."""

    rows: int
    value_bytes: int
    value_crc: int
    key_crc: int

    def times(self, count: int) -> "Check":
        return Check(*(part * count for part in self))

    def plus(self, other: "Check") -> "Check":
        return Check(*(mine + its for mine, its in zip(self, other, strict=True)))


NOTHING = Check(0, 0, 0, 0)


class Data(NamedTuple):
    """Rows of one value size."""

    blocks: list[pa.RecordBatch]
    checks: list[Check]

    def check(self, rows: int) -> Check:
        """Of the first `rows` when the blocks come in turn."""
        found = NOTHING
        for index in range(rows // BLOCK_ROWS):
            found = found.plus(self.checks[index % BLOCKS])
        return found


def make_data(value_bytes: int) -> Data:
    """Always the same for one size."""
    chooser = random.Random(value_bytes)
    blocks = [_block(chooser, value_bytes) for _ in range(BLOCKS)]
    return Data(blocks, [check_of(block) for block in blocks])


def _block(chooser: random.Random, value_bytes: int) -> pa.RecordBatch:
    values = [_value(chooser, value_bytes) for _ in range(BLOCK_ROWS)]
    keys = [f"{chooser.getrandbits(64):016x}".encode() for _ in range(BLOCK_ROWS)]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values)})


def _value(chooser: random.Random, value_bytes: int) -> bytes:
    text = ""
    while len(text) < value_bytes:
        text += (
            f'{{"item":"{chooser.choice(WORDS)}","price":{chooser.randrange(100_000)},'
            f'"count":{chooser.randrange(10)},"user":{chooser.getrandbits(40)}}}'
        )
    return text[:value_bytes].encode()


def check_of(batch: pa.RecordBatch) -> Check:
    """Record by record: for small sets."""
    keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
    return Check(
        batch.num_rows,
        sum(map(len, values)),
        sum(map(zlib.crc32, values)),
        sum(map(zlib.crc32, keys)),
    )


class Topic(NamedTuple):
    """A topic that was filled."""

    name: str
    partitions: int
    rows: int
    value_bytes: int


def client_at(address: str, **settings: object) -> BlockingClient:
    return BlockingClient({"bootstrap.servers": address, **FILL_SETTINGS, **settings})


def create_topic(client: BlockingClient, partitions: int) -> str:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    or_raise(client.create_topics([NewTopic(name=name, partitions=partitions)])[name])
    return name


def fill(address: str, data: Data, *, rows: int, partitions: int, codec: str) -> Topic:
    """A new topic with `rows`, the same number in every partition."""
    with client_at(address, **{"compression.type": codec}) as client:
        name = create_topic(client, partitions)
        with client.column_writer(topic=name) as writer:
            for index in range(rows // BLOCK_ROWS):
                block = data.blocks[index % BLOCKS]
                place = pa.array(np.full(BLOCK_ROWS, index % partitions, np.int32))
                writer.write(block.append_column("partition", place))
    return Topic(name, partitions, rows, len(data.blocks[0].column("value")[0].as_py()))


def stored_rows(client: BlockingClient, topic: str, partitions: int) -> int:
    """How many records the topic has, by its offsets."""
    places = [TopicPartition(topic, index) for index in range(partitions)]
    ends = client.list_offsets(dict.fromkeys(places, LATEST))
    starts = client.list_offsets(dict.fromkeys(places, EARLIEST))
    return sum((ends[one].offset or 0) - (starts[one].offset or 0) for one in places)


def stored_check(client: BlockingClient, topic: str, partitions: int) -> Check:
    """Of everything in the topic, record by record."""
    found = NOTHING
    for index in range(partitions):
        place = TopicPartition(topic, index)
        end = client.list_offsets({place: LATEST})[place].offset or Offset(0)
        for batch in client.read_columns(place, Offset(0), end, columns=["key", "value"]):
            found = found.plus(check_of(batch))
    return found


def write_files(data: Data, directory: Path, *, rows: int, files: int) -> Path:
    """The first `rows` as uncompressed Parquet files, which are quick to read."""
    directory.mkdir(parents=True)
    per_file = rows // files // BLOCK_ROWS
    for number in range(files):
        indices = range(number * per_file, (number + 1) * per_file)
        table = pa.Table.from_batches([data.blocks[index % BLOCKS] for index in indices])
        path = directory / f"{number:03}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False)
    return directory
