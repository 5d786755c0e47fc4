"""Log directories, and files in them, that are taken away or cut under a running broker.

Files that are open can be written after their names are gone: unnoticed, everything would be
acknowledged and nothing of it found at the next start.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kits.process.broker_process import BrokerProcess
from kits.process.disks_kit import (
    OFFLINE,
    TOPIC,
    Disks,
    delete_topic,
    disks_with_records,
    leaders,
    log_dirs,
    put,
    values,
)
from kits.process.waiting_for import until
from millstream.testing.record_batches import read_records
from millstream.wire.errors import ErrorCode

ALL = ("one", "two", "three")
NOTICED_WITHIN_S = 5.0
"""Kafka's own next checkpoint; ours looks every second, and the machine may be slow."""


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """Three disks with two partitions each."""
    return disks_with_records(tmp_path, *ALL)


def empty(path: Path) -> None:
    """What `rm -rf path/*` does: hidden files stay, the lock among them."""
    for one in path.glob("[!.]*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()


def put_another_there(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


TAKING: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "emptied": empty,
    "renamed": lambda path: path.rename(path.with_name("away")),
    "another mounted there": put_another_there,
}


@pytest.mark.parametrize("how", TAKING)
def test_a_directory_that_is_taken_away_goes_offline_and_the_others_go_on(
    disks: Disks, how: str
) -> None:
    gone = disks.partitions_in("two")
    kept = [one for one in range(6) if one not in gone]
    with disks.broker(*ALL) as broker, broker.client() as client:
        for partition in range(6):
            assert put(client, partition, b"second") == 0  # the files are open now
        TAKING[how](disks.path("two"))
        until(
            lambda: [put(client, one, b"lost?") for one in gone] == [OFFLINE, OFFLINE],
            "nothing is acknowledged any more",
            timeout_s=NOTICED_WITHIN_S,
        )
        for partition in kept:
            assert put(client, partition, b"third") == 0
            assert values(client, partition) == [b"first", b"second", b"third"]
        assert [values(client, one) for one in gone] == [OFFLINE, OFFLINE]
        assert [one for one, error in leaders(client).items() if error] == gone
        told = log_dirs(client)
        assert told[str(disks.path("two"))] == OFFLINE
        assert list(told.values()).count(ErrorCode.NONE) == 2
        assert disks.gauge("offline_log_directories") == 1
        assert disks.gauge("offline_partitions") == 2
        until(lambda: disks.lines("log directory failed"), "it is told")
        (line,) = disks.lines("log directory failed")
        assert str(disks.path("two")) in line
        client.create_topic("new", 4)
        assert [put(client, one, b"x", "new") for one in range(4)] == [ErrorCode.NONE] * 4
    assert not list(disks.path("two").glob("*-[0-9]"))
    disks.path("two").mkdir(exist_ok=True)
    with disks.broker(*ALL) as broker, broker.client() as client:
        assert [values(client, one) for one in gone] == [OFFLINE, OFFLINE]
        assert [values(client, one) for one in kept] == [[b"first", b"second", b"third"]] * 4
        assert disks.gauge("offline_log_directories") == 1
        until(lambda: disks.lines("broker started"), "the start is told")
        (line,) = disks.lines("is missing")
        assert "2 of them" in line


def test_a_directory_that_is_taken_away_is_told_while_nobody_writes(disks: Disks) -> None:
    with disks.broker(*ALL):
        shutil.rmtree(disks.path("three"))
        until(lambda: disks.lines("log directory failed"), "it is told")
        (line,) = disks.lines("log directory failed")
        assert str(disks.path("three")) in line
    assert TOPIC not in "".join(one.name for one in disks.path("three").parent.glob("*/*"))


# -- one file --------------------------------------------------------------------------------

CUT, WHOLE = 0, 1
BATCH_BYTES = 300_000
"""Sent from the page cache, not read first: from 64 KiB on."""


def segments(disks: Disks) -> list[Path]:
    return sorted((disks.path("one") / f"cut-{CUT}").glob("*.log"))


def fetched(broker: BrokerProcess, offset: int, size_max: int) -> int:
    """What a reader is told, who comes back whenever its connection is closed; how often it was."""
    for closed in range(5):
        with broker.client() as client, suppress(OSError, EOFError):
            answer = client.fetch("cut", offset, partition=CUT, max_bytes=size_max)
            assert answer.responses[0].partitions[0].error_code == OFFLINE
            return closed
    raise AssertionError("the connection was closed again and again")


@contextmanager
def with_segments(disks: Disks) -> Iterator[BrokerProcess]:
    """Two partitions of several segments, the files open."""
    with disks.broker("one") as broker:
        with broker.client() as client:
            client.create_topic("cut", 2, segment_bytes="1048576")
            for number in range(8):
                for partition in (CUT, WHOLE):
                    value = b"%d" % number * BATCH_BYTES
                    assert put(client, partition, value, "cut") == 0
            for partition in (CUT, WHOLE):
                assert client.fetch("cut", 0, partition=partition).responses
        assert len(segments(disks)) == 3
        yield broker


@pytest.fixture
def cut_topic(tmp_path: Path) -> Iterator[tuple[Disks, BrokerProcess]]:
    disks = Disks(tmp_path)
    with with_segments(disks) as broker:
        yield disks, broker


@pytest.mark.parametrize("size_max", [50_000_000, 1], ids=["large", "one batch"])
@pytest.mark.parametrize(("number", "left"), [(0, 0), (0, 400_000), (0, 300_000), (2, 100), (2, 0)])
def test_a_segment_cut_under_a_reader_costs_its_partition_and_no_other(
    cut_topic: tuple[Disks, BrokerProcess], number: int, left: int, size_max: int
) -> None:
    disks, broker = cut_topic
    with broker.client() as other:
        os.truncate(segments(disks)[number], left)
        assert fetched(broker, 3 * number + (left >= BATCH_BYTES), size_max) <= 1
        assert put(other, CUT, b"x", "cut") == OFFLINE
        assert put(other, WHOLE, b"x", "cut") == 0
        assert other.fetch("cut", 0, partition=WHOLE).responses[0].partitions[0].error_code == 0
        assert disks.gauge("offline_partitions") == 1
        assert disks.gauge("offline_log_directories") == 0
        until(lambda: disks.lines("partition failed"), "it is told")
        (line,) = disks.lines("partition failed")
        assert f"cut-{CUT}" in line
        assert "shorter" in line
        assert len(disks.lines("connection closed")) <= 1


def test_after_a_restart_a_partition_with_a_cut_segment_goes_on(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    with with_segments(disks) as broker:
        os.truncate(segments(disks)[-1], BATCH_BYTES + 200)  # in the second of two batches
        fetched(broker, 6, 50_000_000)
    with disks.broker("one") as again, again.client() as client:
        assert put(client, CUT, b"after", "cut") == 0
        last = client.fetch("cut", 6, partition=CUT).responses[0].partitions[0]
        assert last.error_code == 0
        records = read_records(bytes(last.records or b""))
        assert [(one.offset, (one.value or b"")[:5]) for one in records] == [
            (6, b"66666"),
            (7, b"after"),
        ]
        assert disks.gauge("offline_partitions") == 0


@pytest.mark.parametrize("what", ["partition", "segment"])
def test_a_partition_whose_files_are_removed_acknowledges_nothing_more(
    cut_topic: tuple[Disks, BrokerProcess], what: str
) -> None:
    disks, broker = cut_topic
    with broker.client() as client:
        if what == "partition":
            shutil.rmtree(segments(disks)[0].parent)
        else:
            segments(disks)[-1].unlink()
        until(
            lambda: put(client, CUT, b"lost?", "cut") == OFFLINE,
            "nothing is acknowledged any more",
            timeout_s=NOTICED_WITHIN_S,
        )
        assert put(client, WHOLE, b"x", "cut") == 0
        assert disks.gauge("offline_partitions") == 1
        assert disks.gauge("offline_log_directories") == 0
        until(lambda: disks.lines("partition failed"), "it is told")
        delete_topic(client, "cut")
        assert disks.gauge("offline_partitions") == 0
        client.create_topic("cut", 2)
        assert [put(client, one, b"new", "cut") for one in (CUT, WHOLE)] == [0, 0]
