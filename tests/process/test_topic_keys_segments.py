"""Topic keys that decide how a log is cut into files and when it is flushed, changed while the
broker runs.

Each as the topic's own setting and as the broker's default; removed, the former behaviour is back.
"""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from kits.broker.topic_keys_kit import Bench, Lever, effect_of, running_bench, wall_ms
from kits.process.waiting_for import until
from millstream.runtime.os_disk import OsFile

HOUR_MS = 3_600_000
MIB = 1024 * 1024
ENTRY_BYTES = 8
SMALL = [(b"k", b"v" * 200)]
"""A batch of about 280 bytes."""


class Syncs(dict[str, int]):
    """How often each file was made durable, by its path."""

    def of(self, topic: str) -> int:
        """Of the topic's records."""
        paths = [path for path in self if f"/{topic}-0/" in path and path.endswith(".log")]
        return sum(self[path] for path in paths)


@pytest.fixture(scope="module")
def syncs() -> Iterator[Syncs]:
    counted = Syncs()
    sync = OsFile.sync

    def counting(file: OsFile) -> None:
        sync(file)
        counted[file.path] = counted.get(file.path, 0) + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OsFile, "sync", counting)
        yield counted


@pytest.fixture(scope="module")
def bench(syncs: Syncs) -> Iterator[Bench]:
    del syncs  # from before the first file is opened
    with running_bench() as running:
        yield running


@pytest.fixture(params=["topic", "default"])
def lever(request: pytest.FixtureRequest, bench: Bench) -> Lever:
    return Lever(bench, is_default=request.param == "default")


# -- segments ----------------------------------------------------------------------------------


@effect_of("segment.bytes")
def test_a_segment_is_closed_at_its_size(bench: Bench, lever: Lever) -> None:
    topic = bench.topic()
    large = [(b"k", b"v" * (600 * 1024))]
    for _ in range(2):
        bench.put(topic, large)
    assert bench.segments(topic) == 1
    with lever.turned(topic, "segment.bytes", str(MIB)):
        for _ in range(2):
            bench.put(topic, large)
        assert bench.segments(topic) == 3
    for _ in range(2):
        bench.put(topic, large)
    assert bench.segments(topic) == 3


@effect_of("internal.segment.bytes")
def test_segments_for_tests_can_be_smaller(bench: Bench) -> None:
    topic = bench.topic()
    for _ in range(3):
        bench.put(topic, SMALL)
    bench.alter_topic(topic, internal_segment_bytes="500")
    for _ in range(3):
        bench.put(topic, SMALL)
    assert bench.segments(topic) == 4
    bench.alter_topic(topic, internal_segment_bytes=None)
    for _ in range(3):
        bench.put(topic, SMALL)
    assert bench.segments(topic) == 4


@effect_of("segment.ms")
def test_a_segment_is_closed_at_its_age(bench: Bench, lever: Lever) -> None:
    """Which is the time between its first record and the next one that comes."""
    topic = bench.topic()
    first_ms = wall_ms() - HOUR_MS
    bench.put(topic, timestamp_ms=first_ms)
    bench.put(topic, timestamp_ms=first_ms + 600_001)
    assert bench.segments(topic) == 1
    with lever.turned(topic, "segment.ms", "600000"):
        bench.put(topic, timestamp_ms=first_ms + 600_000)
        assert bench.segments(topic) == 1
        bench.put(topic, timestamp_ms=first_ms + 600_001)
        assert bench.segments(topic) == 2
        bench.put(topic, timestamp_ms=first_ms + 1_200_001)
        assert bench.segments(topic) == 2
        bench.put(topic, timestamp_ms=first_ms + 1_200_002)
        assert bench.segments(topic) == 3
    bench.put(topic, timestamp_ms=first_ms + HOUR_MS)
    assert bench.segments(topic) == 3


@effect_of("segment.jitter.ms")
def test_segments_roll_earlier_by_different_times(bench: Bench, lever: Lever) -> None:
    """Forty partitions get half as old as a segment may: none rolls, or with jitter some do."""
    partitions = 40
    topic = bench.topic({"segment.ms": str(HOUR_MS)}, partitions=partitions)
    first_ms = wall_ms() - HOUR_MS

    def rolled() -> int:
        for partition in range(partitions):
            bench.put(topic, timestamp_ms=first_ms + HOUR_MS // 2, partition=partition)
        counts = [bench.segments(topic, partition=one) for one in range(partitions)]
        return sum(counts) - partitions

    for partition in range(partitions):
        bench.put(topic, timestamp_ms=first_ms, partition=partition)
    assert rolled() == 0
    with lever.turned(topic, "segment.jitter.ms", str(HOUR_MS)):
        early = rolled()
        assert 0 < early < partitions
    assert rolled() == early


@effect_of("segment.index.bytes")
def test_a_segment_is_closed_when_its_index_is_full(bench: Bench, lever: Lever) -> None:
    topic = bench.topic({"index.interval.bytes": "0"})
    for _ in range(5):
        bench.put(topic, SMALL)
    assert bench.segments(topic) == 1
    with lever.turned(topic, "segment.index.bytes", str(2 * ENTRY_BYTES)):
        for _ in range(6):
            bench.put(topic, SMALL)
        first, *closed = bench.files(topic, ".index")  # of the active segment there is none yet
        assert first.stat().st_size == 4 * ENTRY_BYTES
        assert [path.stat().st_size for path in closed] == [2 * ENTRY_BYTES]
        assert bench.segments(topic) == 3
    count = bench.segments(topic)
    for _ in range(6):
        bench.put(topic, SMALL)
    assert bench.segments(topic) == count


@effect_of("index.interval.bytes")
def test_index_entries_are_as_near_as_the_topic_asks(bench: Bench, lever: Lever) -> None:
    """From the next segment on, as in Kafka. Ten batches of 280 bytes in each segment."""
    topic = bench.topic()

    def entries_of_a_segment() -> int:
        base = bench.files(topic)[-1].stem
        for _ in range(10):
            bench.put(topic, SMALL)
        bench.alter_topic(topic, internal_segment_bytes="300")
        bench.put(topic, SMALL)
        bench.alter_topic(topic, internal_segment_bytes=None)
        (index,) = (path for path in bench.files(topic, ".index") if path.stem == base)
        return index.stat().st_size // ENTRY_BYTES

    assert entries_of_a_segment() <= 1
    with lever.turned(topic, "index.interval.bytes", "0"):
        entries_of_a_segment()
        assert entries_of_a_segment() >= 9
    entries_of_a_segment()
    assert entries_of_a_segment() <= 1
    offsets = [record.offset for record in bench.records(topic)]
    assert all(after == before + 1 for before, after in pairwise(offsets))


# -- flush -------------------------------------------------------------------------------------


@effect_of("flush.messages")
def test_an_acknowledgement_comes_after_the_flush(bench: Bench, lever: Lever, syncs: Syncs) -> None:
    topic = bench.topic()
    for _ in range(5):
        bench.put(topic)
    assert syncs.of(topic) == 0
    with lever.turned(topic, "flush.messages", "1"):
        for _ in range(3):
            before = syncs.of(topic)
            bench.put(topic)
            assert syncs.of(topic) > before
    with lever.turned(topic, "flush.messages", "3"):
        before = syncs.of(topic)
        for _ in range(2):
            bench.put(topic)
        assert syncs.of(topic) == before
        bench.put(topic)
        assert syncs.of(topic) > before
    before = syncs.of(topic)
    for _ in range(5):
        bench.put(topic)
    assert syncs.of(topic) == before


@effect_of("flush.ms")
def test_records_are_flushed_when_they_are_old_enough(
    bench: Bench, lever: Lever, syncs: Syncs
) -> None:
    """The broker looks every second; the other topic shows that it did."""
    topic, other = bench.topic(), bench.topic()
    bench.put(topic)
    with lever.turned(topic, "flush.ms", "0"):
        until(lambda: syncs.of(topic), "flushed by its age", timeout_s=5)
    before = syncs.of(topic)
    bench.put(topic)
    bench.alter_topic(other, flush_ms="0")
    bench.put(other)
    until(lambda: syncs.of(other), "the broker looked", timeout_s=5)
    assert syncs.of(topic) == before
