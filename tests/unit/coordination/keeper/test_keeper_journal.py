"""The keeper's files: what a crash leaves is what was promised, and damage is told from it."""

from collections.abc import Callable

import pytest

from millstream.coordination.keeper.changes import (
    Change,
    CloseSession,
    CreateNode,
    DeleteNode,
    OpenSession,
    SetNode,
    SetNodeAcl,
    Txn,
)
from millstream.coordination.keeper.journal import Journal, KeeperDataDamaged, KeeperDataLocked
from millstream.coordination.keeper.requests import Acl
from millstream.coordination.keeper.snapshots import decode_snapshot, encode_snapshot
from millstream.coordination.keeper.state import OPEN_ACL, Draft, State
from millstream.model.ids import SessionId, Zxid
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk

DIRECTORY = "/data/keeper"
SESSION = SessionId(77)
ROLL_BYTES = 400


def a_disk() -> SimDisk:
    return SimDisk(1, directories=["/data"])


def opened(disk: SimDisk, roll_bytes: int = ROLL_BYTES) -> tuple[Journal, State]:
    journal = Journal(disk, DIRECTORY, roll_bytes=roll_bytes)
    return journal, journal.open(SeededRandomness(5)).state


def txn_of(state: State, *changes: Change) -> Txn:
    draft = Draft(state, time_ms=1000 + state.last_zxid, session_id=SESSION)
    for change in changes:
        draft.add(change)
    txn = draft.commit()
    assert txn is not None
    return txn


def some_txns(state: State, count: int) -> list[Txn]:
    """Of every kind there is."""
    txns = [txn_of(state, OpenSession(6000)), txn_of(state, CreateNode("/n", b"", OPEN_ACL, False))]
    for number in range(count):
        path = f"/n/{number}"
        txns.append(
            txn_of(state, CreateNode(path, b"x" * (number % 40), OPEN_ACL, number % 3 == 0))
        )
        if number % 2:
            txns.append(txn_of(state, SetNode(path, b"new"), SetNode("/n", path.encode())))
        if number % 5 == 4:
            txns.append(txn_of(state, DeleteNode(path)))
        if number % 7 == 6:
            txns.append(txn_of(state, SetNodeAcl("/n", (Acl(1, "world", "anyone"),))))
    txns.append(txn_of(state, CloseSession()))
    return txns


def image(state: State) -> bytes:
    return encode_snapshot(state)


def images_of(txns: list[Txn]) -> list[bytes]:
    """The state before the first, and after each."""
    state = State()
    found = [image(state)]
    for txn in txns:
        state.replay(txn)
        found.append(image(state))
    return found


def in_batches(txns: list[Txn], size: int) -> list[list[Txn]]:
    return [txns[start : start + size] for start in range(0, len(txns), size)]


def write_all(disk: SimDisk, txns: list[Txn], on_batch: Callable[[Zxid], None]) -> None:
    journal, _ = opened(disk)
    for batch in in_batches(txns, 3):
        fold_before = journal.append(batch)
        on_batch(batch[-1].zxid)
        if fold_before is not None:
            journal.fold(fold_before)
    journal.close()


def test_a_state_is_the_same_after_snapshot_and_replay() -> None:
    state = State()
    txns = some_txns(state, 30)
    replayed = images_of(txns)[-1]
    assert replayed == image(state)
    loaded = decode_snapshot(image(state))
    assert image(loaded) == image(state)
    assert loaded.ephemerals == state.ephemerals
    assert loaded.size_bytes == state.size_bytes


def test_everything_is_there_after_a_restart_and_old_files_are_gone() -> None:
    disk, state = a_disk(), State()
    txns = some_txns(state, 60)
    write_all(disk, txns, lambda _: None)
    names = disk.list_directory(DIRECTORY)
    assert sum(name.startswith("snapshot.") for name in names) == 1
    assert sum(name.startswith("log.") for name in names) == 1
    journal, found = opened(disk)
    assert image(found) == image(state)
    journal.append([txn_of(state, OpenSession(1))])
    journal.close()
    assert opened(disk)[1].last_zxid == state.last_zxid


def test_a_log_cut_at_any_byte_gives_the_whole_batches_before() -> None:
    disk, state = a_disk(), State()
    txns = some_txns(state, 8)
    journal, _ = opened(disk, roll_bytes=1 << 20)
    ends = [0]
    path = f"{DIRECTORY}/log.{1:016x}"
    for batch in in_batches(txns, 2):
        journal.append(batch)
        ends.append(disk.size(path))
    journal.close()
    images = images_of(txns)
    with disk.open_write(path) as file:
        for size in range(ends[-1], -1, -1):
            file.truncate(size)
            whole = max(index for index, end in enumerate(ends) if end <= size)
            journal, found = opened(disk, roll_bytes=1 << 20)
            journal.close()
            assert image(found) == images[min(2 * whole, len(txns))]
            assert disk.size(path) == ends[whole]
            file.truncate(size)


def test_after_a_torn_end_writing_goes_on() -> None:
    disk, state = a_disk(), State()
    txns = some_txns(state, 4)
    journal, _ = opened(disk)
    journal.append(txns[:2])
    journal.append(txns[2:4])
    journal.close()
    path = f"{DIRECTORY}/log.{1:016x}"
    with disk.open_write(path) as file:
        file.truncate(disk.size(path) - 1)
    journal, found = opened(disk)
    assert image(found) == images_of(txns)[2]
    journal.append(txns[2:])
    journal.close()
    assert image(opened(disk)[1]) == image(state)


def test_a_broken_batch_before_a_whole_one_is_damage() -> None:
    """The first was durable before the second was written: no crash leaves this."""
    disk, state = a_disk(), State()
    txns = some_txns(state, 4)
    journal, _ = opened(disk)
    journal.append(txns[:2])
    journal.append(txns[2:4])
    journal.close()
    path = f"{DIRECTORY}/log.{1:016x}"
    with disk.open_write(path) as file:
        byte = file.read_at(20, 1)
        file.write_at(20, bytes([byte[0] ^ 1]))
    with pytest.raises(KeeperDataDamaged, match="broken at byte 0"):
        opened(disk)
    with pytest.raises(KeeperDataDamaged):
        opened(disk)  # nothing was changed, and the lock was given back


def test_damage_is_told_and_nothing_is_touched() -> None:
    disk, state = a_disk(), State()
    write_all(disk, some_txns(state, 60), lambda _: None)
    names = disk.list_directory(DIRECTORY)
    snapshot = f"{DIRECTORY}/{next(name for name in names if name.startswith('snapshot.'))}"
    with disk.open_write(snapshot) as file:
        byte = file.read_at(100, 1)
        file.write_at(100, bytes([byte[0] ^ 1]))
    with pytest.raises(KeeperDataDamaged, match="checksum"):
        opened(disk)
    disk.remove(snapshot)
    with pytest.raises(KeeperDataDamaged, match="nothing between 0 and"):
        opened(disk)
    disk.remove(f"{DIRECTORY}/identity")
    with pytest.raises(KeeperDataDamaged, match="missing"):
        opened(disk)


def test_data_that_looks_like_a_batch_does_not_pass_for_one() -> None:
    """A client that knew how batches look could otherwise make a torn end pass for damage."""
    disk, state = a_disk(), State()
    other = SimDisk(2, directories=["/data"])
    journal = Journal(other, DIRECTORY)
    journal.open(SeededRandomness(99))
    journal.append([txn_of(State(), OpenSession(1))])
    journal.close()
    with other.open_read(f"{DIRECTORY}/log.{1:016x}") as file:
        foreign = file.read_at(0, 1000)
    journal, _ = opened(disk)
    journal.append([txn_of(state, CreateNode("/a", foreign + b"more", OPEN_ACL, False))])
    journal.close()
    path = f"{DIRECTORY}/log.{1:016x}"
    with disk.open_write(path) as file:
        file.truncate(disk.size(path) - 1)
    assert opened(disk)[1].last_zxid == 0


def test_one_process_at_a_time() -> None:
    disk = a_disk()
    opened(disk)
    with pytest.raises(KeeperDataLocked):
        opened(disk.another_process())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_power_loss_takes_what_was_promised(seed: int) -> None:
    """Every moment of a run with rolls and folds, a thousand ways of losing what was unsynced."""
    disk, state = a_disk(), State()
    txns = some_txns(state, 25)
    images = images_of(txns)
    recording = disk.record()
    write_all(disk, txns, disk.mark)
    tried = 0
    for crash in crash_states(recording, limit=700, seed=seed):
        promised = crash.synced_mark or 0
        assert isinstance(promised, int)
        journal = Journal(crash.disk, DIRECTORY, roll_bytes=ROLL_BYTES)
        found = journal.open(SeededRandomness(5)).state
        told = f"{crash.description}, replay: seed {seed}"
        assert found.last_zxid >= promised, told
        assert image(found) == images[found.last_zxid], told
        journal.close()
        again = Journal(crash.disk, DIRECTORY).open(SeededRandomness(5)).state
        assert image(again) == image(found), told
        tried += 1
    assert tried > 400
