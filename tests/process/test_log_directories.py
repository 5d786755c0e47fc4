"""A broker with several log directories, one of which is not there at the next start.

Otherwise its partitions would be created empty in the others: all records lost, silently.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kits.process.broker_process import BrokerProcess
from kits.process.disks_kit import (
    OFFLINE,
    PARTITIONS,
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
from kits.process.wire_client import WireClient
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """Two disks with two partitions each, and a record in every partition."""
    return disks_with_records(tmp_path, "one", "two")


def uptime_s(broker: BrokerProcess) -> float:
    """Of the process, in seconds."""
    ticks = int(Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[19])
    since_boot_s = float(Path("/proc/uptime").read_text().split()[0])
    return since_boot_s - ticks / os.sysconf("SC_CLK_TCK")


def check_offline(
    disks: Disks, client: WireClient, partitions: Sequence[int], name: str = "two"
) -> None:
    """These partitions and no others; all that tells of it does."""
    online = [one for one in range(PARTITIONS) if one not in partitions]
    for one in partitions:
        assert values(client, one) == OFFLINE
        assert put(client, one, b"lost?") == OFFLINE
    for one in online:
        assert values(client, one)[:1] == [b"first"]  # type: ignore[index]
    told = leaders(client)
    assert [one for one, error in told.items() if error] == list(partitions)
    assert {told[one] for one in partitions} == {ErrorCode.LEADER_NOT_AVAILABLE}
    assert log_dirs(client)[str(disks.path(name))] == OFFLINE
    assert disks.gauge("offline_partitions") == len(partitions)
    assert disks.gauge("offline_log_directories") == 1
    until(lambda: disks.lines("broker started"), "the start is told")
    (line,) = disks.lines(str(disks.path(name)))
    assert "is missing" in line
    assert "2 of them" in line


CONFIGURED = ("one", "two")


@pytest.mark.parametrize(
    ("how", "configured"),
    [
        ("no path", CONFIGURED),
        ("empty mount point", CONFIGURED),
        ("empty mount point", ("two", "one")),
        ("no path", ("one",)),
        ("no path", ("one", "tow")),
    ],
    ids=["not there", "not mounted", "not mounted, first", "not in log.dirs", "misspelt"],
)
def test_an_absent_directory_keeps_its_partitions_offline_and_comes_back(
    disks: Disks, how: str, configured: tuple[str, ...]
) -> None:
    gone = disks.partitions_in("two")
    disks.unmount("two", how=how)
    for _ in range(2):
        with disks.broker(*configured) as broker, broker.client() as client:
            check_offline(disks, client, gone)
            (kept, *_) = disks.partitions_in("one")
            assert put(client, kept, b"meanwhile") == 0
            client.create_topic(f"new-{broker.pid}", 3)
            assert put(client, 2, b"value", f"new-{broker.pid}") == 0
            until(lambda: uptime_s(broker) > 3, "the broker has looked after its directories")
            assert len(disks.lines(str(disks.path("two")))) == 1
    disks.mount("two")
    back = {*configured, "two"}
    with disks.broker(*sorted(back)) as broker, broker.client() as client:
        assert values(client, kept) == [b"first", b"meanwhile", b"meanwhile"]
        for partition in gone:
            assert values(client, partition) == [b"first"]
            assert put(client, partition, b"again") == 0
        assert disks.gauge("offline_partitions") == disks.gauge("offline_log_directories") == 0
        assert not disks.lines("missing")


def test_a_kill_in_between_changes_nothing(disks: Disks) -> None:
    gone = disks.partitions_in("two")
    disks.unmount("two", how="empty mount point")
    for _ in range(2):
        with disks.broker("one", "two", kill=True) as broker, broker.client() as client:
            check_offline(disks, client, gone)
    disks.mount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS


def test_the_loss_can_be_accepted_by_removing_the_file_that_is_named(disks: Disks) -> None:
    gone = disks.partitions_in("two")
    disks.unmount("two", how="empty mount point")
    with disks.broker("one", "two") as broker, broker.client() as client:
        check_offline(disks, client, gone)
    (line,) = disks.lines("is missing")
    found = re.search(r"remove (\S+\.directory)", line)
    assert found is not None
    Path(found[1]).unlink()
    with disks.broker("one", "two") as broker, broker.client() as client:
        for partition in range(PARTITIONS):
            expected = [] if partition in gone else [b"first"]
            assert values(client, partition) == expected
            assert put(client, partition, b"again") == 0
        assert disks.gauge("offline_log_directories") == 0


def test_a_topic_of_an_absent_directory_can_be_deleted_and_stays_deleted(disks: Disks) -> None:
    disks.unmount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        delete_topic(client)
        assert disks.gauge("offline_partitions") == 0
        client.create_topic(TOPIC, PARTITIONS)  # of the same name, and all of it is here
        assert [put(client, one, b"new") for one in range(PARTITIONS)] == [ErrorCode.NONE] * 4
    disks.mount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"new"]] * 4
        until(lambda: not disks.partitions_in("two"), "what was deleted is removed")


def test_a_directory_whose_topics_were_deleted_is_forgotten(disks: Disks) -> None:
    disks.unmount("two")
    with disks.broker("one") as broker, broker.client() as client:
        delete_topic(client)
    for is_first in (True, False):
        with disks.broker("one") as broker, broker.client() as client:
            assert disks.gauge("offline_log_directories") == 0
            assert len(log_dirs(client)) == 1
            until(lambda: disks.lines("broker started"), "the start is told")
            assert len(disks.lines("forgot a missing log directory")) == is_first


def test_a_directory_without_partitions_can_be_removed_and_others_added(disks: Disks) -> None:
    with disks.broker("one", "two", "three") as broker, broker.client() as client:
        assert disks.path("three").exists()
    shutil.rmtree(disks.root / "three")
    with disks.broker("one", "two", "four") as broker, broker.client() as client:
        assert set(log_dirs(client).values()) == {ErrorCode.NONE}
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS
        client.create_topic("new", 2)
        assert list(disks.path("four").glob("new-*"))


def test_directories_may_change_their_places(disks: Disks) -> None:
    disks.unmount("one")
    disks.unmount("two")
    (disks.root / "one.away").rename(disks.root / "two")
    (disks.root / "two.away").rename(disks.root / "one")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS


def test_without_the_directory_of_the_metadata_there_is_no_start(disks: Disks) -> None:
    before = sorted(disks.path("two").rglob("*"))
    for how in ("no path", "empty mount point"):
        disks.unmount("one", how=how)
        done = subprocess.run(
            [sys.executable, "-m", "millstream.broker.process", "--config", "server.properties"],
            cwd=disks.root,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert str(disks.path("one")) in done.stderr
        assert "metadata" in done.stderr
        assert sorted(disks.path("two").rglob("*")) == before
        assert not disks.path("one").exists() or list(disks.path("one").iterdir()) == []
        disks.mount("one")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS


def test_directories_of_apache_kafka_are_known_from_their_adoption_on(disks: Disks) -> None:
    """With the ids that Kafka gave them, and topics that no metadata of ours tells of."""
    shutil.rmtree(disks.path("one") / "metadata")
    (disks.path("two") / "metadata.home").unlink()
    ids = [(disks.path(one) / "meta.properties").read_bytes() for one in CONFIGURED]
    with disks.broker("one", "two", kill=True) as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS
    assert [(disks.path(one) / "meta.properties").read_bytes() for one in CONFIGURED] == ids
    gone = disks.partitions_in("two")
    disks.unmount("two", how="empty mount point")
    with disks.broker("one", "two") as broker, broker.client() as client:
        check_offline(disks, client, gone)
    disks.mount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert [values(client, one) for one in range(PARTITIONS)] == [[b"first"]] * PARTITIONS


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_partition_is_missed_where_it_moved_to(disks: Disks, is_killed: bool) -> None:
    moved, *_ = disks.partitions_in("one")
    with disks.broker("one", "two", kill=is_killed) as broker, broker.client() as client:
        topics = [AlterReplicaLogDirTopic(name=TOPIC, partitions=[moved])]
        move = AlterReplicaLogDir(path=str(disks.path("two")), topics=topics)
        answer = client.send(AlterReplicaLogDirsRequest(dirs=[move]), 2)
        assert answer.results[0].partitions[0].error_code == 0
        until(lambda: moved in disks.partitions_in("two"), "the partition has moved")
        assert put(client, moved, b"there") == 0
    gone = disks.partitions_in("two")
    disks.unmount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        for partition in gone:
            assert values(client, partition) == OFFLINE
        assert disks.gauge("offline_partitions") == 3
    disks.mount("two")
    with disks.broker("one", "two") as broker, broker.client() as client:
        assert values(client, moved) == [b"first", b"there"]
