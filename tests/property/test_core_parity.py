"""The core against its twin and against the long way: the same bytes in, the same answers and logs.

Three worlds get the same frames, cut at the same places: the compiled core, the plain one, and one
whose connections are kept from the core, so that every request goes through `Log.append_as_leader`.
"""

import random
from dataclasses import replace

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.broker.core_kit import (
    BIG_SEGMENTS,
    NOW,
    Client,
    Core,
    Part,
    Twin,
    frame,
    produce_body,
    twin,
)
from kits.kernels.kernel_twins import needs_compiled
from millstream.kernels.compression import Codec
from millstream.testing.record_batches import BatchSpec, build_batch

pytestmark = needs_compiled("slots", "connection")

CONFIG = replace(
    BIG_SEGMENTS, segment_bytes=12000, index_interval_bytes=300, max_message_bytes=3000
)

KNOWN, NEW = 10, 20
"""Producers of the first client: one that the partitions know, one they will get to know."""


class Worlds:
    """The same clients in three cores."""

    def __init__(self, clients: int) -> None:
        kernels = [twin("compiled"), twin("plain"), twin("plain")]
        self.cores = [Core(kernel, config=CONFIG) for kernel in kernels if isinstance(kernel, Twin)]
        for core in self.cores:
            for number in range(clients):
                core.know(KNOWN + number)
                core.know(KNOWN + number, index=1)
        self.clients = [[core.connect() for _ in range(clients)] for core in self.cores]
        for client in self.clients[2]:
            client.connection.allows_fast_path = False

    def wake_up(self, pieces: dict[int, bytes]) -> None:
        """Each client gets its bytes, then all are served and everything is compared."""
        for clients in self.clients:
            for number, data in pieces.items():
                if not clients[number].error:
                    clients[number].send(data)
            for number in pieces:
                if not clients[number].error:
                    clients[number].serve()
        self.check()

    def check(self) -> None:
        compiled, plain, python = self.cores
        assert compiled.facts() == plain.facts() == python.facts()
        for one, two, three in zip(*self.clients, strict=True):
            assert one.received == two.received == three.received
            assert one.error == two.error == three.error
            assert facts_of(one) == facts_of(two) == facts_of(three)
        assert compiled.table.produce_requests == plain.table.produce_requests
        for index in range(2):
            ours, theirs = compiled.slot(index), plain.slot(index)
            for name in ("bytes_in", "records_in", "position", "log_end", "high_watermark"):
                assert getattr(ours, name) == getattr(theirs, name), name


def facts_of(client: Client) -> tuple[int, ...]:
    connection = client.connection
    return (
        connection.in_flight,
        connection.output_bytes,
        connection.late_bytes,
        connection.unread_bytes,
        connection.is_blocked,
    )


class Frames:
    """Requests of one client's producers, which mostly do it right."""

    def __init__(self, source: random.Random, number: int, damage: float) -> None:
        self.source = source
        self.damage = damage
        self.producers = [KNOWN + number, NEW + number]
        self.sequences = {(producer, at): 1 for producer in self.producers for at in (0, 1)}
        self.sent = 0

    def batch(self, index: int) -> bytes:
        source = self.source
        count = source.choice([1, 1, 1, 2, 5])
        producer = source.choice([-1, *self.producers])
        late_ms = source.choice([0, 3, 5, 900, -1000] * 5 + [10**8])
        spec = BatchSpec(timestamp_ms=NOW + late_ms)
        if producer >= 0:
            sequence = self.sequences[producer, index]
            if source.random() < 0.1:
                sequence = max(0, sequence + source.choice([-1, 1]))
            else:
                self.sequences[producer, index] += count
            spec = spec._replace(producer_id=producer, producer_epoch=0, base_sequence=sequence)
        if source.random() < 0.05:
            spec = spec._replace(codec=Codec.LZ4)
        size = source.choice([0, 10, 100, 300] * 5 + [2500])
        pairs = [(source.choice([None, b"key"]), b"v" * size) for _ in range(count)]
        headers = [("h", b"x")] if source.random() < 0.2 else []
        data = build_batch(pairs, spec, headers=headers)
        if source.random() < self.damage:
            # The CRC is right, so the fields and records behind it have to be looked at.
            at = source.randrange(21, len(data))
            data[at] = source.choice([0, 1, 0xFF, data[at] ^ (1 << source.randrange(8))])
            data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        return bytes(data)

    def frame(self) -> bytes:
        source = self.source
        indexes = source.choice([[0], [1], [0, 1], [1, 0]] * 5 + [[0, 0], [0, 9], []])
        parts: list[Part] = [(index, self.batch(index % 2)) for index in indexes]
        version = source.randint(3, 13)
        acks = source.choice([1, -1, 0] * 5 + [3])
        self.sent += 1
        body = produce_body(parts, version, acks=acks)
        return frame(body, version=version, correlation_id=self.sent)


def damaged(source: random.Random, data: bytes) -> bytes:
    """One to three bytes changed, mostly where lengths and headers are."""
    out = bytearray(data)
    for _ in range(source.randint(1, 3)):
        end = source.choice([len(out), min(120, len(out))])
        at = source.randrange(4, end)
        out[at] = source.choice([0, 1, 0x7F, 0x80, 0xFF, out[at] ^ (1 << source.randrange(8))])
    return bytes(out)


def run(seed: int, *, damage: float) -> tuple[Worlds, int]:
    """The worlds after a random day, and how many requests there were."""
    source = random.Random(seed)
    worlds = Worlds(clients=3)
    frames = [Frames(source, number, damage) for number in range(3)]
    rest = [b""] * 3
    for _ in range(12):
        for number in range(3):
            for _ in range(source.choice([0, 1, 1, 2, 6])):
                data = frames[number].frame()
                rest[number] += damaged(source, data) if source.random() < damage else data
        pieces = {}
        for number in source.sample(range(3), source.randint(1, 3)):
            cut = source.choice([len(rest[number]), source.randint(0, len(rest[number]))])
            pieces[number], rest[number] = rest[number][:cut], rest[number][cut:]
        worlds.wake_up(pieces)
    worlds.wake_up(dict(enumerate(rest)))
    return worlds, sum(one.sent for one in frames)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_good_requests_are_the_same_in_all_worlds(seed: int) -> None:
    worlds, _ = run(seed, damage=0)
    assert all(not client.error for client in worlds.clients[0])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_requests_are_the_same_in_all_worlds(seed: int) -> None:
    run(seed, damage=0.4)


def test_most_good_requests_take_the_short_way() -> None:
    """Otherwise all of this compares Python with itself."""
    worlds, sent = run(1, damage=0)
    assert worlds.cores[0].table.produce_requests > sent // 3
