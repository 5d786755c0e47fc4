"""Whose data directory it is: ids generated once, Kafka's taken over, others' refused."""

import errno

import pytest

from kits.controller.controller_kit import METADATA, create, made, new_disk, run, started
from millstream.controller.errors import DamagedMetadata, InconsistentClusterId, WrongBrokerId
from millstream.controller.identity import decode_meta_properties
from millstream.runtime.disk import read_whole
from millstream.storage.directories.partition_metadata import parse_topic_id
from millstream.testing.sim.disk import SimDisk

KAFKA_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
KAFKA_DIRECTORY = "Ik4jaPQvR5eZhvHnHzuLqQ"
KAFKA_FILE = f"""#
#Sat Nov 15 20:10:00 UTC 2025
cluster.id={KAFKA_CLUSTER}
directory.id={KAFKA_DIRECTORY}
node.id=1
version=1
"""


def put(disk: SimDisk, directory: str, text: str) -> None:
    disk.make_directories(directory)
    with disk.open_write(f"{directory}/meta.properties") as file:
        file.truncate(0)
        file.write_at(0, text.encode())
        file.sync()
    disk.sync_directory(directory)


def said(disk: SimDisk, directory: str = "/data") -> dict[str, str]:
    text = read_whole(disk, f"{directory}/meta.properties").decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_a_new_directory_gets_ids_that_stay() -> None:
    disk = new_disk()
    controller = started(disk, seed=1)
    first = said(disk)
    assert first["version"] == "1"
    assert first["node.id"] == "1"
    assert first["cluster.id"] == controller.image.cluster_id
    assert parse_topic_id(first["cluster.id"]) is not None
    assert parse_topic_id(first["directory.id"]) == controller.directory_ids["/data"]
    controller.close()
    assert started(disk, seed=2).image.cluster_id == first["cluster.id"]
    assert said(disk) == first


def test_two_clusters_have_two_ids() -> None:
    assert (
        started(new_disk(), seed=1).image.cluster_id != started(new_disk(), seed=2).image.cluster_id
    )


def test_a_cluster_id_may_be_given_for_a_new_directory_alone() -> None:
    disk = new_disk()
    controller = made(disk)
    controller.start(cluster_id="mine")
    assert controller.image.cluster_id == "mine"
    controller.close()
    second = made(disk)
    second.start(cluster_id="other")
    assert second.image.cluster_id == "mine"


def test_a_directory_of_kafka_keeps_its_ids() -> None:
    disk = new_disk()
    put(disk, "/data", KAFKA_FILE)
    controller = started(disk)
    assert controller.image.cluster_id == KAFKA_CLUSTER
    assert controller.directory_ids["/data"] == parse_topic_id(KAFKA_DIRECTORY)
    assert read_whole(disk, "/data/meta.properties").decode() == KAFKA_FILE


def test_kafkas_old_version_is_taken_over_and_completed() -> None:
    disk = new_disk()
    put(disk, "/data", f"version=0\nbroker.id=1\ncluster.id={KAFKA_CLUSTER}\n")
    controller = started(disk)
    assert controller.image.cluster_id == KAFKA_CLUSTER
    assert said(disk)["version"] == "1"
    assert said(disk)["node.id"] == "1"


@pytest.mark.parametrize("text", [KAFKA_FILE.replace("node.id=1", "node.id=2"), "broker.id=2\n"])
def test_a_directory_of_another_broker_is_refused_untouched(text: str) -> None:
    disk = new_disk()
    put(disk, "/data", text)
    with pytest.raises(WrongBrokerId, match="broker 2, this one is 1"):
        made(disk).load()
    assert disk.list_directory("/data") == ["meta.properties"]
    assert read_whole(disk, "/data/meta.properties").decode() == text


def test_another_broker_id_is_refused_by_our_own_metadata_too() -> None:
    disk = new_disk()
    started(disk).close()
    disk.remove("/data/meta.properties")
    with pytest.raises(WrongBrokerId):
        made(disk, broker_id=2).load()


def test_directories_of_two_clusters_are_refused() -> None:
    disk = SimDisk(directories=["/a", "/b"])
    put(disk, "/a", KAFKA_FILE)
    put(disk, "/b", KAFKA_FILE.replace(KAFKA_CLUSTER, "Another"))
    with pytest.raises(InconsistentClusterId, match="Another"):
        made(disk, directories=["/a", "/b"]).load()
    assert disk.list_directory("/a") == ["meta.properties"]


def test_a_second_directory_joins_the_first() -> None:
    disk = SimDisk(directories=["/a", "/b"])
    put(disk, "/b", KAFKA_FILE)
    controller = made(disk, directories=["/a", "/b", "/c/d"])
    controller.start()
    told = [said(disk, directory) for directory in ("/a", "/b", "/c/d")]
    assert {one["cluster.id"] for one in told} == {KAFKA_CLUSTER}
    assert len({one["directory.id"] for one in told}) == 3


def test_a_lost_file_is_completed_from_our_metadata() -> None:
    disk = new_disk()
    controller = started(disk, seed=1)
    run(lambda: create(controller, "t"))
    controller.close()
    disk.remove("/data/meta.properties")
    assert started(disk, seed=2).image.cluster_id == controller.image.cluster_id
    assert said(disk)["cluster.id"] == controller.image.cluster_id


def test_a_directory_that_cannot_be_read_does_not_keep_the_others_from_starting() -> None:
    disk = SimDisk(directories=["/a", "/b"])
    disk.faults.fail_directory("/b", errno.EIO)
    controller = made(disk, directories=["/a", "/b"])
    controller.start()
    assert list(controller.directory_ids) == ["/a"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#\n",
        "version=1\n",
        "version=2\nnode.id=1\ncluster.id=x\n",
        "version=x\n",
        "version=1\nnode.id=1\n",
        "version=1\nnode.id=one\ncluster.id=x\n",
        "version=1\nnode.id=1\ncluster.id=x\ndirectory.id=short\n",
        "version",
        "\x00\x00\x00",
    ],
)
def test_a_damaged_file_stops_the_start_and_stays(text: str) -> None:
    disk = new_disk()
    put(disk, "/data", text)
    with pytest.raises(DamagedMetadata, match=r"/data/meta\.properties"):
        made(disk).load()
    assert read_whole(disk, "/data/meta.properties").decode() == text
    assert not disk.exists(METADATA)


def test_what_java_escapes_is_read() -> None:
    properties = decode_meta_properties(b"version=1\nnode.id=1\ncluster.id=a\\:b\\=c\n")
    assert properties.cluster_id == "a:b=c"
