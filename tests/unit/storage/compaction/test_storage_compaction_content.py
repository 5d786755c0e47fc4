"""What a cleaned log holds: the newest of every key, tombstones for a while, offsets unchanged."""

from dataclasses import replace
from pathlib import Path

import pytest

from kits.storage.compaction_kit import COMPACT, RETENTION_MS, ROOT, Bench
from millstream.kernels.compression import Codec
from millstream.model.ids import Offset, TimestampMs
from millstream.runtime.os_disk import OsDisk
from millstream.storage.config import TimestampType
from millstream.storage.log.reader import Isolation
from millstream.storage.segments.batch_attributes import DELETE_HORIZON_BIT
from millstream.testing.record_batches import PlainRecord, read_records
from millstream.testing.sim.disk import SimDisk


@pytest.fixture(params=["simulated", "real"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "real":
        return Bench(OsDisk(), root=str(tmp_path))
    return Bench(SimDisk(directories=[ROOT]))


def stored_batches(bench: Bench) -> list[tuple[int, list[PlainRecord]]]:
    """(attributes, records) of every batch on disk."""
    found = []
    for segment in bench.log.segments:
        for step in segment.walk(check_crc=True):
            data = bytes(step.buffer)
            at = 0
            while at < step.rows[-12] + step.rows[-11]:
                size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
                attributes = int.from_bytes(data[at + 21 : at + 23], "big")
                found.append((attributes, read_records(data[at : at + size])))
                at += size
    return found


def test_the_newest_value_of_every_key_stays_and_older_ones_go(bench: Bench) -> None:
    """S5. Within a batch, across batches and across segments."""
    bench.put(a="1", b="1", c="1")
    bench.append([(b"a", b"2"), (b"a", b"3"), (b"d", b"1")])
    bench.seal()
    bench.put(b="2")
    bench.seal()
    bench.put(tail="active")
    bench.clean()
    assert bench.values() == [
        (b"c", b"1"),
        (b"a", b"3"),
        (b"d", b"1"),
        (b"b", b"2"),
        (b"tail", b"active"),
    ]


def test_offsets_timestamps_and_headers_of_what_stays_do_not_change(bench: Bench) -> None:
    for number in range(30):
        stamp = bench.clock.wall_ms() - number * 7
        keys = [f"k{number % 5}".encode(), f"only{number}".encode()]
        bench.append([(key, b"v%d" % number) for key in keys], timestamps=[stamp, stamp - 3])
        if number % 4 == 3:
            bench.seal()
    bench.seal()
    before = {record.offset: record for record in bench.records()}
    bench.clean()
    after = bench.records()
    assert len(after) == 35
    assert all(before[record.offset] == record for record in after)


def test_a_batch_that_lost_its_newest_timestamp_does_not_claim_it(bench: Bench) -> None:
    now = bench.clock.wall_ms()
    bench.append([(b"a", b"1"), (b"b", b"1")], timestamps=[now, now - 1000])
    bench.append([(b"a", b"2")], timestamps=[now - 2000])
    bench.seal()
    bench.clean()
    found = bench.log.find_max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (1, now - 1000)


def test_the_active_segment_is_never_cleaned(bench: Bench) -> None:
    bench.put(a="1")
    bench.seal()
    bench.put(a="2")
    bench.put(a="3")
    bench.settle_watermarks()
    bench.clean()
    assert bench.values() == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")]


def test_reading_works_from_every_offset_also_in_a_gap(bench: Bench) -> None:
    for number in range(40):
        bench.put(a=str(number), **{f"k{number}": "x"})
    bench.seal()
    bench.clean()
    everything = bench.records()
    for start in range(bench.log.log_end):
        first = bench.log.read(Offset(start), size_max=1, isolation=Isolation.HIGH_WATERMARK)
        batch = read_records(first.data.read())
        expected = next(one for one in everything if one.offset >= start)
        assert expected in batch


def test_a_second_cleaning_without_new_data_has_nothing_to_do(bench: Bench) -> None:
    bench.put(a="1", b="1")
    bench.seal()
    bench.clean()
    assert bench.is_clean()
    assert bench.log.first_dirty_offset == 2


def test_small_segments_are_merged_up_to_segment_bytes(bench: Bench) -> None:
    for number in range(12):
        bench.put(**{f"k{number}": "v" * 50})
        bench.seal()
    assert len(bench.log.segments) == 13
    bench.clean()
    assert len(bench.log.segments) == 2
    assert bench.log.segments.at(Offset(0)).size_bytes <= COMPACT.segment_bytes
    assert len(bench.values()) == 12


def test_a_group_never_exceeds_segment_bytes() -> None:
    bench = Bench(config=replace(COMPACT, segment_bytes=400))
    for number in range(12):
        bench.put(**{f"k{number}": "v" * 50})
        bench.seal()
    bench.clean()
    assert 3 < len(bench.log.segments) < 12
    assert all(segment.size_bytes <= 400 for segment in bench.log.segments)


def test_a_segment_with_nothing_to_remove_is_not_replaced(bench: Bench) -> None:
    bench.put(full="v" * 1900)
    bench.seal()
    bench.clean()
    kept = bench.log.segments.at(Offset(0))
    bench.put(a="1")
    bench.put(a="2")
    bench.seal()
    bench.cleaner.run_once()
    ran = bench.background.run_all()
    assert ran == ["map keys", "write", "write", "swap", "swap", "swap", "swap", "write"]
    assert bench.log.segments.at(Offset(0)) is kept
    assert not bench.strange_files()


def test_records_without_a_key_go_as_in_kafka() -> None:
    """A topic that was not compacted before may hold them."""
    bench = Bench(config=replace(COMPACT, cleanup_compact=False))
    bench.append([(None, b"x"), (b"a", b"1"), (None, b"y")])
    bench.append([(None, b"z")])
    bench.seal()
    bench.log.config = COMPACT
    bench.clean()
    assert bench.values() == [(b"a", b"1")]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_keep_their_codec(bench: Bench, codec: Codec) -> None:
    bench.append([(b"a", b"old" * 50), (b"b", b"stays" * 50)], codec=codec)
    bench.append([(b"a", b"new" * 50), (b"gone", None)], codec=codec)
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"b", b"stays" * 50), (b"a", b"new" * 50), (b"gone", None)]
    assert [attributes & 7 for attributes, _ in stored_batches(bench)] == [codec, codec]


# -- tombstones


def test_a_tombstone_outlives_its_value_by_delete_retention(bench: Bench) -> None:
    bench.put(a="1", b="1")
    bench.seal()
    bench.put(a=None)
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"b", b"1"), (b"a", None)]
    bench.clock.advance(RETENTION_MS - 1)
    bench.put(c="1")
    bench.seal()
    bench.clean()
    assert (b"a", None) in bench.values(), "one millisecond too early"
    bench.clock.advance(1)
    bench.put(d="1")
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"b", b"1"), (b"c", b"1"), (b"d", b"1")]


def test_a_tombstone_that_was_overwritten_goes_at_once(bench: Bench) -> None:
    bench.put(a="1")
    bench.put(a=None)
    bench.put(a="2")
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"a", b"2")]


def test_the_delete_horizon_has_kafkas_form(bench: Bench) -> None:
    """Bit 6 of the attributes, the horizon as base timestamp; records keep their timestamps."""
    now = bench.clock.wall_ms()
    bench.append([(b"a", None), (b"b", b"1")], timestamps=[now - 500, now - 100])
    bench.seal()
    before = bench.records()
    bench.clean()
    segment = bench.log.segments.at(Offset(0))
    header = segment.log.open().read_at(0, 61)
    assert int.from_bytes(header[21:23], "big") == DELETE_HORIZON_BIT
    assert int.from_bytes(header[27:35], "big") == now + RETENTION_MS
    assert int.from_bytes(header[35:43], "big") == now - 100
    assert bench.records() == before
    assert bench.log.find_timestamp(TimestampMs(now - 200)) is not None
    bench.put(c="1")
    bench.clock.advance(5)
    bench.seal()
    bench.clean()
    again = bench.log.segments.at(Offset(0)).log.open().read_at(0, 61)
    assert again[27:35] == header[27:35], "the horizon is set once"


def test_the_horizon_leaves_append_time_alone() -> None:
    bench = Bench(config=replace(COMPACT, timestamp_type=TimestampType.LOG_APPEND_TIME))
    bench.put(a=None, b="1")
    bench.seal()
    before = bench.records()
    bench.clock.advance(77)
    bench.clean()
    assert bench.records() == before


def test_a_horizon_beyond_all_time_does_not_overflow() -> None:
    bench = Bench(config=replace(COMPACT, delete_retention_ms=2**63 - 1))
    bench.append([(b"a", None)], timestamps=[-1])
    bench.seal()
    before = bench.records()
    bench.clean()
    assert bench.records() == before


def first_cleaning(bench: Bench) -> list[bool]:
    """Clean once, as far as the map goes; which batches have a delete horizon then."""
    bench.cleaner.run_once()
    while not bench.reports:
        bench.background.run_next()
    return [bool(attributes & DELETE_HORIZON_BIT) for attributes, _ in stored_batches(bench)]


def test_tombstones_behind_the_maps_end_get_no_horizon_yet() -> None:
    """Else value and tombstone could go together, and a slow reader would keep the value."""
    for map_keys, mapped_end, flags in [(3, 4, [False, True]), (2, 2, [False, False])]:
        bench = Bench(key_map_bytes=24 * (map_keys + 1))
        bench.put(a="1", b="1", c="1")
        bench.put(a=None)
        bench.seal()
        assert first_cleaning(bench) == flags
        assert bench.log.first_dirty_offset == mapped_end


def test_a_batch_that_only_half_fits_the_map_gets_no_horizon_either() -> None:
    bench = Bench(key_map_bytes=24 * 2)
    bench.append([(b"a", b"1"), (b"x", None), (b"a", b"2"), (b"y", b"1")])
    bench.seal()
    assert first_cleaning(bench) == [False]
    assert bench.log.first_dirty_offset == 1
    assert bench.values() == [(b"a", b"1"), (b"x", None), (b"a", b"2"), (b"y", b"1")]
    bench.background.run_all()
    assert bench.values() == [(b"x", None), (b"a", b"2"), (b"y", b"1")]


# -- bounded memory


def test_a_map_of_one_key_still_gets_through() -> None:
    bench = Bench(key_map_bytes=24 * 2)
    for number in range(10):
        bench.append([(b"a", b"%d" % number), (b"b", b"%d" % number), (b"c", b"%d" % number)])
    bench.seal()
    bench.clean()
    assert bench.log.first_dirty_offset == 30
    assert bench.state() == {b"a": b"9", b"b": b"9", b"c": b"9"}
    assert len(bench.reports) > 5
    assert bench.values() == [(b"a", b"9"), (b"b", b"9"), (b"c", b"9")]


def test_the_map_takes_no_more_memory_than_the_dirty_part_could_need() -> None:
    bench = Bench(key_map_bytes=1 << 50)
    bench.put(a="1", b="2")
    bench.seal()
    assert bench.clean().stats.key_count == 2


# -- after a restart


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_cleaned_log_opens_again(bench: Bench, is_clean: bool) -> None:
    for number in range(30):
        bench.put(a=str(number), **{f"k{number}": "x"})
    bench.seal()
    bench.clean()
    before = bench.records()
    again = bench.reopened(is_clean=is_clean)
    assert again.records() == before
    again.check()


def test_lost_indexes_of_a_cleaned_segment_are_rebuilt(bench: Bench) -> None:
    for number in range(30):
        bench.put(a=str(number), **{f"k{number}": "x"})
    bench.seal()
    bench.clean()
    before = bench.records()
    again = bench.reopened()
    for name in again.files():
        if name.endswith((".index", ".timeindex")) and name.startswith("0" * 20):
            again.disk.remove(f"{again.log.context.directory}/{name}")
    assert again.records() == before
    again.check()
