"""The transaction index: Kafka's bytes, range searches, truncation and torn tails."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.ids import Offset, ProducerId
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.segments.txn_index import ENTRY_BYTES, AbortedTransaction, TransactionIndex


def aborted(producer: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(ProducerId(producer), Offset(first), Offset(last), Offset(stable))


ENTRIES = [aborted(7, 10, 20, 11), aborted(8, 11, 30, 25), aborted(9, 25, 40, 41)]
# As Kafka 4.3.1's TransactionIndex writes the first two, the second with last stable offset 31.
KAFKA_BYTES = bytes.fromhex(
    "00000000000000000007000000000000000a0000000000000014000000000000000b"
    "00000000000000000008000000000000000b000000000000001e000000000000001f"
)


def index_at(path: Path, entries: list[AbortedTransaction] | None = None) -> TransactionIndex:
    index = TransactionIndex(OsDisk(), str(path))
    for entry in entries or []:
        index.append(entry)
    return index


def test_bytes_are_those_that_kafka_writes(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    entries = [aborted(7, 10, 20, 11), aborted(8, 11, 30, 31)]
    index_at(path, entries)
    assert path.read_bytes() == KAFKA_BYTES
    assert ENTRY_BYTES == 34
    assert index_at(path).entries() == entries


def test_no_file_before_the_first_aborted_transaction(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index = index_at(path)
    assert index.entries() == []
    assert index.collect(Offset(0), Offset(100)) == ([], False)
    index.truncate_to(Offset(0))
    index.check(Offset(0))
    index.reset()
    index.sync()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "end", "found", "is_complete"),
    [
        (0, 5, [], True),  # the first marker already saw everything below 11 decided
        (0, 11, [0], True),
        (0, 12, [0, 1], True),
        (0, 25, [0, 1], True),
        (0, 26, [0, 1, 2], True),
        (21, 26, [1, 2], True),
        (31, 41, [2], True),
        (31, 42, [2], False),  # a marker in a later segment may concern these offsets
        (41, 50, [], False),
        (20, 21, [0, 1], True),
    ],
)
def test_collects_what_touches_the_range(
    tmp_path: Path, start: int, end: int, found: list[int], is_complete: bool
) -> None:
    """I-23. Ends are inclusive in the index, the range is [start, end)."""
    index = index_at(tmp_path / "0.txnindex", ENTRIES)
    search = index.collect(Offset(start), Offset(end))
    assert search == ([ENTRIES[number] for number in found], is_complete)


def test_more_entries_than_one_read_brings(tmp_path: Path) -> None:
    """An incomplete list would show aborted records as committed (I-23)."""
    entries = [aborted(1, 2 * n, 2 * n + 1, 2 * n) for n in range(500)]
    path = tmp_path / "0.txnindex"
    path.write_bytes(b"".join(entry.encode() for entry in entries))
    index = index_at(path)
    assert index.entries() == entries
    assert index.collect(Offset(100), Offset(5000)).transactions == entries[50:]


@given(data=st.data())
def test_collect_agrees_with_a_plain_scan(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The search for the first entry and the reads in chunks leave nothing out."""
    lasts = data.draw(st.lists(st.integers(1, 2000), unique=True, max_size=300).map(sorted))
    entries, stable = [], 0
    for last in lasts:
        stable = data.draw(st.integers(stable, last + 1))
        entries.append(aborted(1, data.draw(st.integers(0, last - 1)), last, stable))
    start = data.draw(st.integers(0, 2000))
    end = data.draw(st.integers(start + 1, 2100))
    path = tmp_path_factory.mktemp("txn") / "0.txnindex"
    path.write_bytes(b"".join(entry.encode() for entry in entries))
    expected, is_complete = [], False
    for entry in entries:
        if entry.last_offset >= start and entry.first_offset < end:
            expected.append(entry)
        if entry.last_stable_offset >= end:
            is_complete = True
            break
    assert index_at(path).collect(Offset(start), Offset(end)) == (expected, is_complete)


@pytest.mark.parametrize(("end", "kept"), [(41, 3), (40, 2), (31, 2), (30, 1), (20, 0), (0, 0)])
def test_truncation_drops_markers_at_or_after_the_end(tmp_path: Path, end: int, kept: int) -> None:
    path = tmp_path / "0.txnindex"
    index = index_at(path, ENTRIES)
    index.truncate_to(Offset(end))
    assert index.entries() == ENTRIES[:kept]
    assert path.stat().st_size == kept * ENTRY_BYTES
    index.append(ENTRIES[2]._replace(last_offset=Offset(50)))
    assert len(index_at(path).entries()) == kept + 1


def test_every_cut_leaves_the_longest_whole_prefix_and_appends_go_on_there(tmp_path: Path) -> None:
    """I-11. Part of an entry is not seen, and not left between two entries either."""
    path = tmp_path / "0.txnindex"
    index_at(path, ENTRIES)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        index = index_at(path)
        index.check(Offset(0))
        kept = ENTRIES[: size // ENTRY_BYTES]
        assert index.entries() == kept
        index.append(aborted(1, 45, 50, 51))
        assert index_at(path).entries() == [*kept, aborted(1, 45, 50, 51)]


@pytest.mark.parametrize(
    "entry",
    [
        (1, 7, 10, 20, 11),
        (-1, 7, 10, 20, 11),
        (0, -1, 10, 20, 11),
        (0, 7, -1, 20, 11),
        (0, 7, 20, 20, 11),
        (0, 7, 10, 20, 22),
        (0, 7, 10, 20, -1),
    ],
)
def test_an_entry_that_no_marker_causes_is_damage(
    tmp_path: Path, entry: tuple[int, int, int, int, int]
) -> None:
    version, *fields = entry
    path = tmp_path / "0.txnindex"
    raw = b"".join(f.to_bytes(8, "big", signed=True) for f in fields)
    path.write_bytes(version.to_bytes(2, "big", signed=True) + raw)
    with pytest.raises(IndexDamaged):
        index_at(path).entries()
    with pytest.raises(IndexDamaged):
        index_at(path).collect(Offset(0), Offset(50))
    with pytest.raises(IndexDamaged):
        index_at(path).check(Offset(0))


def test_check_finds_markers_outside_the_segment_or_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index_at(path, ENTRIES).check(Offset(20))
    with pytest.raises(IndexDamaged, match="20"):
        index_at(path).check(Offset(21))
    path.write_bytes(b"".join(entry.encode() for entry in reversed(ENTRIES)))
    with pytest.raises(IndexDamaged):
        index_at(path).check(Offset(0))


def test_reset_empties_a_damaged_index(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(b"\xff" * 100)
    index = index_at(path)
    index.reset()
    assert index.entries() == []
    assert path.stat().st_size == 0
    index.append(ENTRIES[0])
    assert index_at(path).entries() == ENTRIES[:1]


def test_markers_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index_at(path, ENTRIES)
    with pytest.raises(InvariantViolated, match="I-23"):
        index_at(path).append(aborted(1, 15, 40, 41))


def test_sync_covers_the_name_of_a_new_file_and_happens_once(tmp_path: Path) -> None:
    """A recovery point above the marker trusts the index, so name and content must be there."""

    class CountingDisk(OsDisk):
        synced: list[str] = []  # noqa: RUF012

        def sync_directory(self, path: str) -> None:
            self.synced.append(path)
            super().sync_directory(path)

    disk = CountingDisk()
    index = TransactionIndex(disk, str(tmp_path / "0.txnindex"))
    index.append(ENTRIES[0])
    index.sync()
    index.sync()
    index.append(ENTRIES[1])
    index.sync()
    assert disk.synced == [str(tmp_path)]


def test_the_owner_may_rename_the_file(tmp_path: Path) -> None:
    index = index_at(tmp_path / "0.txnindex", ENTRIES[:1])
    (tmp_path / "0.txnindex").rename(tmp_path / "0.txnindex.deleted")
    index.path = str(tmp_path / "0.txnindex.deleted")
    assert index.entries() == ENTRIES[:1]
