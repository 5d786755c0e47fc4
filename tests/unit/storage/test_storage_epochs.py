"""Leader epochs: OffsetForLeaderEpoch's answers, truncation at both ends, and the file."""

from pathlib import Path

import pytest

from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage.directories.checkpoints import CorruptCheckpoint
from millstream.storage.epochs import EpochFile, LeaderEpochs, save_image

UNDEFINED = (-1, -1)
LOG_END = Offset(100)


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.assign(LeaderEpoch(epoch), Offset(start))
    epochs.dirty = False
    return epochs


def assign(epochs: LeaderEpochs, epoch: int, start: int) -> bool:
    return epochs.assign(LeaderEpoch(epoch), Offset(start))


def test_the_latest_epoch_keeps_its_first_start() -> None:
    epochs = epochs_of((2, 10))
    assert not assign(epochs, 2, 15)
    assert epochs.entries() == [(2, 10)]
    assert not epochs.dirty


def test_a_new_epoch_is_added_and_makes_the_file_stale() -> None:
    epochs = epochs_of((2, 10))
    assert assign(epochs, 5, 20)
    assert epochs.entries() == [(2, 10), (5, 20)]
    assert epochs.latest == 5
    assert epochs.dirty


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ((5, 30), [(1, 10), (2, 20), (5, 30)]),  # nothing was written in epoch 4
        ((5, 25), [(1, 10), (2, 20), (5, 25)]),
        ((5, 5), [(5, 5)]),
        ((4, 25), [(1, 10), (2, 20), (4, 25)]),  # the same epoch, earlier
        ((3, 40), [(1, 10), (2, 20), (3, 40)]),  # a lower epoch drops the higher ones
        ((0, 50), [(0, 50)]),
    ],
)
def test_the_newest_fact_drops_what_contradicts_it(
    new: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    """I-10. As Kafka's cache does; both columns stay strictly increasing."""
    epochs = epochs_of((1, 10), (2, 20), (4, 30))
    assert assign(epochs, *new)
    assert epochs.entries() == expected


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1)])
def test_an_entry_below_zero_is_a_bug(entry: tuple[int, int]) -> None:
    with pytest.raises(InvariantViolated, match="I-10"):
        assign(LeaderEpochs(), *entry)


@pytest.mark.parametrize(
    ("requested", "answer"),
    [
        (-1, UNDEFINED),
        (0, (0, 10)),  # below the first: what it wrote is gone, begin at our first epoch
        (1, (0, 10)),
        (2, (2, 20)),
        (3, (2, 20)),  # not known: the largest epoch below it
        (4, (4, 30)),
        (6, (4, 30)),
        (7, (7, LOG_END)),
        (8, UNDEFINED),  # a leader has no end for an epoch after its own
    ],
)
def test_where_an_epoch_ended(requested: int, answer: tuple[int, int]) -> None:
    """KIP-101, KIP-279: the rules of OffsetForLeaderEpoch."""
    epochs = epochs_of((2, 10), (4, 20), (7, 30))
    if requested in (0, 1):
        answer = (requested, answer[1])
    assert epochs.end_offset_for(LeaderEpoch(requested), LOG_END) == answer


def test_without_entries_every_epoch_end_is_undefined() -> None:
    assert LeaderEpochs().end_offset_for(LeaderEpoch(0), LOG_END) == UNDEFINED
    assert LeaderEpochs().latest == NO_LEADER_EPOCH


def test_epoch_of_an_offset() -> None:
    epochs = epochs_of((2, 10), (4, 20))
    found = [epochs.epoch_at(Offset(offset)) for offset in (9, 10, 19, 20, 99)]
    assert found == [NO_LEADER_EPOCH, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (31, [(2, 10), (4, 20), (7, 30)]),
        (30, [(2, 10), (4, 20)]),
        (21, [(2, 10), (4, 20)]),
        (20, [(2, 10)]),
        (0, []),
    ],
)
def test_truncation_from_the_end(end: int, expected: list[tuple[int, int]]) -> None:
    epochs = epochs_of((2, 10), (4, 20), (7, 30))
    epochs.truncate_from_end(Offset(end))
    assert epochs.entries() == expected
    assert epochs.dirty == (len(expected) < 3)


@pytest.mark.parametrize(
    ("start", "expected", "dirty"),
    [
        (9, [(2, 10), (4, 20), (7, 30)], False),
        (10, [(2, 10), (4, 20), (7, 30)], False),
        (11, [(2, 11), (4, 20), (7, 30)], True),
        (20, [(4, 20), (7, 30)], True),
        (29, [(4, 29), (7, 30)], True),
        (99, [(7, 99)], True),
    ],
)
def test_truncation_from_the_start(
    start: int, expected: list[tuple[int, int]], dirty: bool
) -> None:
    epochs = epochs_of((2, 10), (4, 20), (7, 30))
    epochs.truncate_from_start(Offset(start))
    assert epochs.entries() == expected
    assert epochs.dirty is dirty


def test_clear_forgets_everything() -> None:
    epochs = epochs_of((2, 10))
    epochs.clear()
    assert len(epochs) == 0
    assert epochs.dirty


def test_file_is_what_kafka_writes(tmp_path: Path) -> None:
    """Kafka 4.3.1's LeaderEpochCheckpointFile writes exactly these bytes."""
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = epochs_of((0, 0), (3, 17))
    epochs.dirty = True
    save_image(OsDisk(), EpochFile(str(path)).image(epochs))
    assert path.read_bytes() == bytes.fromhex("300a320a3020300a332031370a")
    assert not epochs.dirty
    loaded = LeaderEpochs.load(OsDisk(), str(path))
    assert loaded.entries() == epochs.entries()
    assert not loaded.dirty


def test_missing_file_is_empty(tmp_path: Path) -> None:
    assert len(LeaderEpochs.load(OsDisk(), str(tmp_path / "none"))) == 0


def test_every_cut_of_the_file_is_refused(tmp_path: Path) -> None:
    """I-11. The loader then rebuilds the epochs from the batches."""
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = epochs_of((0, 0), (3, 17), (12, 1234))
    save_image(OsDisk(), EpochFile(str(path)).image(epochs))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptCheckpoint):
            LeaderEpochs.load(OsDisk(), str(path))


@pytest.mark.parametrize(
    "lines", ["1 5\n1 6", "2 5\n1 6", "1 5\n2 5", "1 5\n2 4", "1", "1 2 3", "a 5", "-1 5", "1 -5"]
)
def test_file_out_of_order_is_refused(tmp_path: Path, lines: str) -> None:
    """I-10. Such a file was not written by us, whatever its entries say."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n{lines.count(chr(10)) + 1}\n{lines}\n")
    with pytest.raises(CorruptCheckpoint):
        LeaderEpochs.load(OsDisk(), str(path))
