"""Transactions and producers under compaction: I-20, I-21, I-23, I-24, I-25."""

import pytest

from kits.storage.compaction_kit import RETENTION_MS, Bench
from millstream.model.errors import OutOfOrderSequence, StaleProducerEpoch
from millstream.model.ids import LeaderEpoch, Offset, ProducerId
from millstream.storage.compaction.log_cleaning import CleaningEnd
from millstream.storage.log.reader import Isolation
from millstream.storage.producers.machine import Origin
from millstream.storage.segments.batch_attributes import DELETE_HORIZON_BIT
from millstream.testing.record_batches import BatchSpec, build_marker


def markers(bench: Bench) -> list[int]:
    return [one.offset for one in bench.records() if one.is_control]


def forget_producers(bench: Bench) -> None:
    """Let all producers expire, so that nothing is kept for their sake."""
    bench.log.producers.states.expire(bench.clock.wall_ms() + 10**9, 1)  # type: ignore[arg-type]


def dirty_again(bench: Bench) -> None:
    bench.put(filler=str(bench.log.log_end))
    bench.seal()


def without_snapshots(bench: Bench) -> Bench:
    """Reopen as after a crash that lost every snapshot: state comes from the batches alone."""
    directory = bench.log.context.directory
    again_disk = bench.disk
    bench.opened.close()
    for name in again_disk.list_directory(directory):
        if name.endswith(".snapshot"):
            again_disk.remove(f"{directory}/{name}")
    return Bench(again_disk, bench.log.config, is_clean=True, clock=bench.clock)


def test_aborted_records_go_and_do_not_shadow_committed_ones() -> None:
    bench = Bench()
    bench.put(a="committed", b="committed")
    bench.in_transaction([(b"a", b"aborted"), (b"c", b"aborted")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.in_transaction([(b"b", b"newer")], producer_id=2, sequence=0)
    bench.end_transaction(producer_id=2, is_commit=True)
    bench.seal()
    bench.clean()
    assert bench.state(Isolation.COMMITTED) == {b"a": b"committed", b"b": b"newer"}
    assert bench.state() == {b"a": b"committed", b"b": b"newer"}


def test_the_marker_may_lie_in_the_active_segment() -> None:
    bench = Bench()
    bench.put(a="committed")
    bench.in_transaction([(b"a", b"aborted")], producer_id=1, sequence=0)
    bench.seal()
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.settle_watermarks()
    bench.clean()
    assert bench.state() == {b"a": b"committed"}
    assert bench.state(Isolation.COMMITTED) == {b"a": b"committed"}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_outlives_its_records_and_then_goes(is_commit: bool) -> None:
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0)
    marker = bench.end_transaction(producer_id=1, is_commit=is_commit).base_offset
    bench.put(a="2")
    bench.seal()
    forget_producers(bench)
    bench.clean()  # removes the record
    assert bench.values() == [(b"a", b"2")]
    assert markers(bench) == [marker]
    dirty_again(bench)
    bench.clean()  # sets the horizon
    assert markers(bench) == [marker]
    bench.clock.advance(RETENTION_MS - 1)
    dirty_again(bench)
    bench.clean()
    assert markers(bench) == [marker], "one millisecond too early"
    bench.clock.advance(1)
    dirty_again(bench)
    bench.clean()
    assert markers(bench) == []


def test_a_commit_marker_stays_while_a_record_of_its_transaction_does() -> None:
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0)
    bench.in_transaction([(b"b", b"1")], producer_id=1, sequence=1)
    marker = bench.end_transaction(producer_id=1, is_commit=True).base_offset
    bench.seal()
    forget_producers(bench)
    for _ in range(3):
        dirty_again(bench)
        bench.clean()
        bench.clock.advance(RETENTION_MS)
    assert markers(bench) == [marker]
    assert bench.state(Isolation.COMMITTED)[b"a"] == b"1"


def test_a_marker_keeps_its_timestamp_for_the_producer() -> None:
    """The horizon takes the place of the base timestamp, which must not become the producer's."""
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=True)
    stamped = bench.clock.wall_ms()
    bench.put(a="2")
    bench.seal()
    forget_producers(bench)
    bench.clean()
    dirty_again(bench)
    bench.clean()
    header = bench.log.segments.at(Offset(0)).log.open().read_at(0, 61)
    assert int.from_bytes(header[21:23], "big") & DELETE_HORIZON_BIT
    again = without_snapshots(bench)
    entry = again.log.producers.states.get(ProducerId(1))
    assert entry is not None
    assert entry.last_timestamp_ms == stamped


def test_a_marker_too_old_for_a_horizon_stays_as_it_is() -> None:
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0)
    spec = BatchSpec(producer_id=1, producer_epoch=0, timestamp_ms=-(2**63))
    bench.log.append_as_leader(
        build_marker(spec, is_commit=True), leader_epoch=LeaderEpoch(0), origin=Origin.COORDINATOR
    )
    bench.put(a="2")
    bench.seal()
    forget_producers(bench)
    bench.clean()
    for _ in range(2):
        dirty_again(bench)
        bench.clean()
        bench.clock.advance(RETENTION_MS)
    stamps = [one.timestamp_ms for one in bench.records() if one.is_control]
    assert stamps == [-(2**63)]


def test_aborted_transactions_are_still_told_while_a_record_is_there() -> None:
    """The marker is in the cleaned part, an aborted batch stays empty for the producer's sake."""
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.put(b="1")
    bench.seal()
    for _ in range(3):
        dirty_again(bench)
        bench.clean()
        bench.clock.advance(RETENTION_MS)
        read = bench.log.read(Offset(0), size_max=1 << 20, isolation=Isolation.COMMITTED)
        assert [one.producer_id for one in read.aborted] == [1]
    assert markers(bench) != []


def test_no_transaction_hangs_after_a_replay_of_the_cleaned_log() -> None:
    """I-25. Markers never go before the last batch of their transaction."""
    bench = Bench()
    for round_number in range(6):
        producer = round_number % 3 + 1
        sequence = round_number // 3
        bench.in_transaction(
            [(b"a", b"%d" % round_number)], producer_id=producer, sequence=sequence
        )
        bench.end_transaction(producer_id=producer, is_commit=round_number % 2 == 0)
        bench.seal()
        bench.clean()
        bench.clock.advance(RETENTION_MS + 1)
        if round_number == 3:
            forget_producers(bench)
    bench = without_snapshots(bench)
    bench.settle_watermarks()
    assert bench.log.last_stable_offset == bench.log.log_end


def test_idempotent_producers_are_remembered_by_a_replay() -> None:
    """I-20. All records of the producer are replaced, yet its last sequence is known."""
    bench = Bench()
    for sequence in range(3):
        bench.append(
            [(b"a", b"%d" % sequence), (b"b", b"x")],
            producer_id=5,
            producer_epoch=2,
            base_sequence=2 * sequence,
        )
    bench.put(a="end", b="end")
    bench.seal()
    bench.clean()
    assert bench.values() == [(b"a", b"end"), (b"b", b"end")]
    bench = without_snapshots(bench)
    retry = bench.append(
        [(b"a", b"2"), (b"b", b"x")], producer_id=5, producer_epoch=2, base_sequence=4
    )
    assert (retry.is_duplicate, retry.base_offset) == (True, 4)
    with pytest.raises(OutOfOrderSequence):
        bench.append([(b"a", b"?")], producer_id=5, producer_epoch=2, base_sequence=9)
    with pytest.raises(StaleProducerEpoch):
        bench.append([(b"a", b"?")], producer_id=5, producer_epoch=1, base_sequence=6)
    bench.append([(b"a", b"next")], producer_id=5, producer_epoch=2, base_sequence=6)


def test_the_epoch_of_a_fenced_producer_is_remembered_by_a_replay() -> None:
    """I-21. A marker with a raised epoch is all that tells of it."""
    bench = Bench()
    bench.in_transaction([(b"a", b"1")], producer_id=1, sequence=0, epoch=3)
    bench.end_transaction(producer_id=1, is_commit=False, epoch=4)
    bench.put(a="2")
    bench.seal()
    for _ in range(4):
        bench.clean()
        bench.clock.advance(RETENTION_MS + 1)
        dirty_again(bench)
    bench = without_snapshots(bench)
    with pytest.raises(StaleProducerEpoch):
        bench.in_transaction([(b"a", b"3")], producer_id=1, sequence=1, epoch=3)


def test_batches_of_forgotten_producers_go() -> None:
    bench = Bench()
    bench.append([(b"a", b"1")], producer_id=5, producer_epoch=0, base_sequence=0)
    bench.put(a="2")
    bench.seal()
    forget_producers(bench)
    bench.clean()
    assert bench.log.segments.at(Offset(0)).size_bytes < 61 + 61


def test_a_transaction_index_that_lies_makes_the_log_uncleanable() -> None:
    """Aborted records must never count as newest: better not clean at all."""
    bench = Bench()
    bench.put(a="committed")
    bench.in_transaction([(b"a", b"aborted")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.seal()
    bench.disk.remove(f"{bench.log.context.directory}/{'0' * 20}.txnindex")
    bench.cleaner.run_once()
    bench.background.run_all()
    assert [report.end for report in bench.reports] == [CleaningEnd.CORRUPT]
    assert "transaction index" in next(iter(bench.cleaner.uncleanable.values()))
    assert (b"a", b"committed") in bench.values()
