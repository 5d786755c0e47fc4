"""The log's side of the core: where an append stops being plain, and how small numbers are kept."""

import struct
from array import array
from dataclasses import replace
from functools import partial

import pytest

from kits.broker.core_kit import (
    BIG_SEGMENTS,
    NOW,
    TWINS,
    Core,
    Twin,
    batch,
    produce_frame,
    sequenced,
)
from millstream.kernels import batches, slots
from millstream.model.ids import LeaderEpoch, Offset
from millstream.model.limits import PRODUCER_BATCHES_KEPT
from millstream.storage.config import FOREVER, LogConfig
from millstream.testing.record_batches import BatchSpec


def both_ways(kernel: Twin, config: LogConfig, stamps: list[int]) -> list[Core]:
    """One-record batches through the core and, in a second world, through the slow path only."""
    worlds = [Core(kernel, partitions=1, config=config) for _ in range(2)]
    for number, world in enumerate(worlds):
        client = world.connect()
        client.connection.allows_fast_path = number == 0
        for at in range(0, len(stamps), 7):  # seven requests in an iteration
            for stamp in stamps[at : at + 7]:
                data = batch(b"v" * 40, spec=BatchSpec(timestamp_ms=stamp))
                client.send(produce_frame([(0, data)]))
            client.serve()
    return worlds


CONFIGS = {
    "size": (replace(BIG_SEGMENTS, segment_bytes=1000), 0),
    "time": (replace(BIG_SEGMENTS, segment_ms=5), 1),
    "time of a compacted topic": (
        replace(BIG_SEGMENTS, cleanup_compact=True, max_compaction_lag_ms=5, segment_ms=FOREVER),
        1,
    ),
    "index": (replace(BIG_SEGMENTS, segment_index_bytes=40, index_interval_bytes=100), 0),
    "nothing": (replace(BIG_SEGMENTS, segment_ms=FOREVER), 0),
}


@pytest.mark.parametrize("kernel", TWINS)
@pytest.mark.parametrize("name", CONFIGS)
def test_segments_roll_at_the_same_batches_as_in_python(kernel: Twin, name: str) -> None:
    config, step = CONFIGS[name]
    core, oracle = both_ways(kernel, config, [NOW + step * number for number in range(50)])
    bases = [segment.base_offset for segment in core.log().segments]
    assert bases == [segment.base_offset for segment in oracle.log().segments]
    assert (len(bases) > 3) is (name != "nothing")
    assert core.facts() == oracle.facts()
    assert 20 < core.table.produce_requests <= 50
    assert oracle.table.produce_requests == 0


@pytest.mark.parametrize("kernel", TWINS)
def test_a_segment_ends_where_its_index_cannot_count(kernel: Twin) -> None:
    core = Core(kernel, partitions=1)
    core.slot().offset_max = core.log().log_end + 1
    client = core.connect()
    client.send(produce_frame([(0, batch(b"a", b"b", b"c"))]))
    assert len(client.requests()) == 1
    client.send(produce_frame([(0, batch(b"a", b"b"))]))
    assert client.requests() == []
    client.send(produce_frame([(0, batch(b"a"))]))
    assert len(client.requests()) == 1


@pytest.mark.parametrize("kernel", TWINS)
def test_only_the_leader_of_the_newest_epoch_stages(kernel: Twin) -> None:
    core = Core(kernel, partitions=1)
    client, log = core.connect(), core.log()

    def is_staged() -> bool:
        client.send(produce_frame([(0, batch())]))
        taken = client.requests()
        core.write_staged()
        return not taken

    assert is_staged()
    log.stop_leading()
    log.append_as_leader(batch(), leader_epoch=LeaderEpoch(0))
    assert not is_staged()
    core.lead(log, epoch=3)
    assert not is_staged()  # the first batch of an epoch is noted in Python
    log.append_as_leader(batch(), leader_epoch=LeaderEpoch(3))
    assert is_staged()
    log.append_as_follower(batch(spec=BatchSpec(log.log_end, 4, timestamp_ms=NOW)))
    assert not is_staged()


@pytest.mark.parametrize("kernel", TWINS)
def test_nothing_is_staged_into_a_log_that_was_cut(kernel: Twin) -> None:
    core = Core(kernel, partitions=1)
    core.know(5)
    client, log = core.connect(), core.log()
    client.send(produce_frame([(0, sequenced(5, 1))]))
    assert client.requests() == []
    log.truncate_to(Offset(1), is_unclean=True)
    core.write_staged()
    # It was written, then cut.
    assert [one.partitions for one in client.answers()] == [[(0, 0, 2, 0)]]
    assert log.log_end == core.slot().staged_end == 1
    client.send(produce_frame([(0, batch())]))
    assert len(client.requests()) == 1
    client.send(produce_frame([(0, sequenced(5, 2))]))
    assert len(client.requests()) == 1
    log.append_as_leader(batch(), leader_epoch=LeaderEpoch(0))
    client.send(produce_frame([(0, sequenced(5, 2))]))
    assert len(client.requests()) == 1  # the producer of what was cut is not known any more
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []


@pytest.mark.parametrize("kernel", TWINS)
def test_staged_batches_survive_a_restart(kernel: Twin) -> None:
    core = Core(kernel, partitions=1)
    core.know(5)
    client = core.connect()
    client.send(produce_frame([(0, sequenced(5, 1, count=3))]) + produce_frame([(0, batch())]))
    assert client.requests() == []
    core.write_staged()
    before = core.facts()[0]
    core.opened[0].abandon()
    core.opened.clear()
    core.open(0)
    after = core.facts()[0]
    assert after[0][0].startswith(before[0][0])
    assert after[2] == before[2]


# -- small things ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", TWINS)
def test_a_producer_keeps_its_newest_batches(kernel: Twin) -> None:
    entry = kernel.slots.ProducerEntry(7, 2)
    assert (entry.batches, entry.last_sequence, entry.last_offset) == ([], -1, -1)
    assert (entry.coordinator_epoch, entry.transaction_first_offset) == (-1, -1)
    kept = [(at, at + 1, at * 10, at * 10 + 1, at * 100) for at in range(8)]
    for one in kept:
        entry.keep(*one)
    assert entry.batches == kept[-PRODUCER_BATCHES_KEPT:]
    assert (entry.last_sequence, entry.last_offset) == (8, 71)
    assert kernel.slots.BATCHES_KEPT == PRODUCER_BATCHES_KEPT
    entry.start_epoch(3)
    assert (entry.epoch, entry.batches) == (3, [])
    entry.keep(*kept[0])
    entry.forget_batches()
    assert (entry.epoch, entry.batches) == (3, [])


@pytest.mark.parametrize("kernel", TWINS)
def test_index_entries_come_every_interval(kernel: Twin) -> None:
    rows = array("q")
    for number, stamp in enumerate([5, 9, 7, 9, 12]):
        row = [0] * batches.ROW_FIELDS
        row[batches.POSITION], row[batches.SIZE] = number * 100, 100
        row[batches.LAST_OFFSET], row[batches.MAX_TIMESTAMP] = number, stamp
        row[batches.RECORD_COUNT] = 1 if number != 4 else 0
        rows.extend(row)
    offsets, times = bytearray(), bytearray()
    steps = partial(kernel.slots.index_steps, base_offset=0, interval_bytes=150, since=(60, -1, 77))
    assert steps(rows, offsets, times, shift=1000) == (200, 9, 1)
    assert list(struct.iter_unpack(">ii", offsets)) == [(1, 1100), (3, 1300)]
    # The second entry says nothing new of the time.
    assert list(struct.iter_unpack(">qi", times)) == [(9, 1)]
    assert steps(rows[:0], offsets, times, shift=0) == (60, -1, 77)
    assert (len(offsets), len(times)) == (16, 12)


@pytest.mark.parametrize("kernel", TWINS)
@pytest.mark.parametrize(
    ("last_offset", "position"), [(2**31, 0), (-1, 0), (0, 2**31), (0, -1), (2**31 + 7, 2**31)]
)
def test_an_index_takes_nothing_it_cannot_address(
    kernel: Twin, last_offset: int, position: int
) -> None:
    row = array("q", [0] * batches.ROW_FIELDS)
    row[batches.LAST_OFFSET], row[batches.POSITION] = last_offset, position
    row[batches.RECORD_COUNT] = 1
    offsets, times = bytearray(), bytearray()
    with pytest.raises((ValueError, struct.error)):
        kernel.slots.index_steps(
            row, offsets, times, shift=0, base_offset=0, interval_bytes=0, since=(1, -1, 0)
        )
    assert not offsets + times


def test_the_limits_of_a_slot_are_those_of_c() -> None:
    assert slots.NO_LIMIT == FOREVER
