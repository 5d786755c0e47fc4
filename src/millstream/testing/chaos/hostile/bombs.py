"""Batches that are larger than they look, and batches that are refused, again and again."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from crc32c import crc32c

from millstream.kernels.compression import Codec, compress
from millstream.testing.chaos.hostile.attack import (
    Attack,
    Connection,
    Scene,
    Send,
    deadline_of,
    noted,
    request_frame,
)
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

CODECS: Final = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
DECOMPRESSED_BYTES: Final = 64 << 20
"""What a broker decompresses at most; snappy cannot make that small enough for a batch."""
SNAPPY_BYTES: Final = 16 << 20
REFUSED: Final = 200
"""At 64 MiB each: as much as any machine here has."""
_HEADER_BYTES: Final = 61


def attacks() -> Iterator[Attack]:
    for codec in CODECS:
        yield Attack(f"bombs of {codec.name.lower()}", partial(_bombs, codec))
    yield Attack("bombs of zstd, one after the other", _bombs_in_sequence)
    yield Attack("refused batches, repeated", _refused)


def bomb(codec: Codec, size: float = 1.0) -> bytes:
    """A batch whose records are zeros: decompressed it is large, and then refused."""
    decompressed = SNAPPY_BYTES if codec is Codec.SNAPPY else DECOMPRESSED_BYTES
    spec = BatchSpec(timestamp_ms=int(time.time() * 1000), codec=codec)
    batch = build_batch([(b"k", b"v")], spec)[:_HEADER_BYTES]
    batch += compress(codec, bytes(int(decompressed * size)))
    return _sealed(batch)


def _sealed(batch: bytearray) -> bytes:
    """With the length and the CRC that belong to the bytes."""
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def produce_frame(topic: str, records: bytes, partitions: range = range(1)) -> bytes:
    data = [PartitionProduceData(index=index, records=records) for index in partitions]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return request_frame(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)


def _bombs(codec: Codec, scene: Scene) -> Send:
    """In all partitions: each broker leads some."""
    frame = produce_frame(scene.target.topic, bomb(codec, scene.target.size), range(6))
    return partial(_repeat, scene, frame, scene.target.share_of(REFUSED // 6))


def _bombs_in_sequence(scene: Scene) -> Send:
    """Two kilobytes each, in requests of their own, without waiting for answers."""
    batch = bomb(Codec.ZSTD, scene.target.size)
    frames = [produce_frame(scene.target.topic, batch, range(at, at + 1)) for at in range(6)]
    data = b"".join(frames) * scene.target.share_of(REFUSED // 6)

    def send() -> None:
        with noted(scene.outcome), Connection(scene.target.address) as connection:
            connection.send(data)
            end_s = deadline_of(scene.target)
            for _ in range(scene.target.share_of(REFUSED // 6) * 6):
                if time.monotonic() > end_s:
                    return
                connection.read_frame()
                scene.outcome.note("answers")

    return send


def _refused(scene: Scene) -> Send:
    """Not compressed, and wrong in the last record, so that all of it is looked at."""
    spec = BatchSpec(timestamp_ms=int(time.time() * 1000))
    batch = build_batch([(b"k", bytes(100))] * scene.target.share_of(8_000), spec)
    batch[-1] = 0x7F
    frame = produce_frame(scene.target.topic, _sealed(batch), range(6))
    return partial(_repeat, scene, frame, 10**6)


def _repeat(scene: Scene, frame: bytes, times: int) -> None:
    end_s = deadline_of(scene.target)
    with noted(scene.outcome), Connection(scene.target.address) as connection:
        for _ in range(times):
            if time.monotonic() > end_s:
                return
            connection.send(frame)
            connection.read_frame()
            scene.outcome.note("answers")
