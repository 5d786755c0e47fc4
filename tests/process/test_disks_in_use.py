"""Log directories that are taken away under a running broker.

Files that are open can be written after their names are gone: unnoticed, everything would be
acknowledged and nothing of it found at the next start.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from disks_kit import OFFLINE, TOPIC, Disks, disks_with_records, leaders, log_dirs, put, values
from millstream.wire.errors import ErrorCode
from waiting_for import until

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
        until(lambda: disks.lines("a log directory failed"), "it is told")
        (line,) = disks.lines("a log directory failed")
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
        until(lambda: disks.lines("a log directory failed"), "it is told")
        (line,) = disks.lines("a log directory failed")
        assert str(disks.path("three")) in line
    assert TOPIC not in "".join(one.name for one in disks.path("three").parent.glob("*/*"))
