"""Columns that are still referenced stay as they are, whatever is decoded after them."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kits.kernels.column_batches import Record, batch_of
from kits.kernels.kernel_twins import compiled, needs_compiled, twins
from millstream.client.fetch.arrow import BatchMaker
from millstream.model.ids import TopicPartition

COLUMNS = ("key", "value", "offset", "timestamp", "headers")


def random_batch(rng: random.Random) -> bytes:
    size = rng.choice((5, 3000, 40_000))
    return batch_of(
        [
            Record(
                rng.randbytes(rng.choice((3, size))),
                None if rng.random() < 0.2 else rng.randbytes(size),
                rng.randrange(2**40),
                ((b"h", b"1"),) * rng.choice((0, 0, 1)),
            )
            for _ in range(rng.choice((1, 20)))
        ],
        base_offset=rng.randrange(2**40),
    )


@pytest.mark.parametrize("kernel", twins("column_decode"))
def test_a_batch_that_is_held_does_not_change(kernel: Any) -> None:
    """Buffers of large columns are used again; some batches are held, some parts of them."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    maker = BatchMaker(TopicPartition("t", 0), COLUMNS)
    held: list[tuple[Any, Any]] = []
    for _ in range(60):
        data = random_batch(rng)
        batch = maker.batch(kernel.decode(data, 0, len(data)))
        part = batch.slice(rng.randrange(batch.num_rows)).select(
            rng.sample(COLUMNS, rng.randrange(1, len(COLUMNS)))
        )
        # A copy through the wire format shares no memory.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        (copy,) = pa.ipc.open_stream(sink.getvalue())
        held.append((part, copy))
        del batch, part
        if rng.random() < 0.6:
            held.pop(rng.randrange(len(held)))
    for part, copy in held:
        part.validate(full=True)
        assert part == copy


@needs_compiled("column_decode")
@pytest.mark.parametrize("batch_rows", [50, 1100])
@pytest.mark.parametrize("key_bytes", [0, 16, 900])
def test_memory_that_was_let_go_is_used_for_the_next_batch(batch_rows: int, key_bytes: int) -> None:
    """One large batch, or many: every fetch is about as long as the last one, and one is held."""
    kernel = compiled("column_decode")
    assert kernel is not None
    rng = random.Random(1)
    addresses: set[int] = set()
    held: Any = None
    for _ in range(40):
        data = bytearray()
        for index in range(1100 // batch_rows):
            rows = batch_rows - rng.randrange(3)
            one = Record(bytes(key_bytes), bytes(900), 0)
            data += batch_of([one] * rows, base_offset=index * batch_rows)
        held = kernel.decode(data, 0, len(data)).columns
        for column in (held.keys, held.values):
            if len(column.data) >= 64 * 1024:
                addresses.add(np.frombuffer(column.data, np.uint8).ctypes.data)
    assert len(addresses) <= 6
