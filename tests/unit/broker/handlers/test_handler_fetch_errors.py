"""Fetch: offsets, partitions and epochs that are refused, and with which code."""

from typing import Any
from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane, topic_image
from kits.broker.fetch_kit import VERSIONS, pinned, plane_with
from millstream.controller.image import GrownTopic, ImageChange
from millstream.kernels.compression import Codec
from millstream.model.ids import BrokerId, Offset
from millstream.storage.config import LogConfig
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState

# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [-1, 2, 10, 2**62])
def test_offsets_outside_the_log_are_told_at_once(version: int, offset: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    fetched = plane.fetch([("t", 0, offset)], version=version, max_wait_ms=500)
    one = fetched.only
    assert one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (-1, -1, -1)
    assert one.records == b""


def test_offsets_below_the_log_start_are_out_of_range() -> None:
    plane = plane_with()
    plane.fill("t", b"a", b"b", b"c")
    plane.leader("t").log.advance_log_start(Offset(2))
    assert plane.fetch([("t", 0, 1)]).errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert plane.fetch([("t", 0, 2)]).only.log_start_offset == 2


def test_unknown_partitions_have_their_code_and_others_are_served() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    fetched = plane.fetch([("nobody", 0, 0), ("t", 0, 0), ("t", 5, 0)], version=12)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched.errors == [unknown, 0, unknown]
    assert fetched.values("t") == [b"a"]
    fetched = plane.fetch([("nobody", 0, 0), ("t", 0, 0), ("t", 5, 0)], version=13)
    assert fetched.errors == [ErrorCode.UNKNOWN_TOPIC_ID, 0, unknown]


def test_unknown_partitions_alone_are_answered_at_once_and_otherwise_waited_with() -> None:
    """As Kafka: a client that keeps asking for a deleted topic must not turn into a busy loop."""
    plane = plane_with()
    fetched = plane.fetch([("nobody", 0, 0)], version=12, max_wait_ms=500)
    assert fetched.errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    request = plane.fetch_request([("nobody", 0, 0), ("t", 0, 0)], max_wait_ms=500)
    number = plane.send(request, 12)
    assert plane.answer(number, FetchResponse, 12) is None
    plane.timers.pass_time(500)
    assert plane.fetched(number, 12).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, 0), (4, 0), (3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
@pytest.mark.parametrize("version", [9, 12, 15, 16, 18])
def test_leader_epochs_are_checked(epoch: int, code: int, version: int) -> None:
    """I-15, and KIP-951 since version 16."""
    plane = DataPlane()
    plane.create("t", epoch=4)
    fetched = plane.fetch([("t", 0, 0)], version=version, partition={"current_leader_epoch": epoch})
    assert fetched.errors == [code]
    is_hinted = version >= 16 and code == ErrorCode.FENCED_LEADER_EPOCH
    leader = fetched.only.current_leader
    assert (leader.leader_id, leader.leader_epoch) == ((1, 4) if is_hinted else (-1, -1))
    nodes = [(one.node_id, one.host, one.rack) for one in fetched.response.node_endpoints]
    assert nodes == ([(1, "broker.example", "rack-1")] if is_hinted else [])


def _epochs() -> DataPlane:
    """Offsets 0-1 of epoch 2, 2-4 of epoch 5."""
    plane = DataPlane()
    plane.create("t", epoch=2)
    plane.fill("t", b"a", b"b")
    plane.apply(ImageChange(reconfigured=[topic_image("t", epoch=5)]))
    plane.fill("t", b"c", b"d", b"e")
    return plane


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (5, 5, None),
        (2, 2, None),
        (3, 2, (2, 2)),
        (3, 3, (2, 2)),
        (4, 4, (2, 2)),
        (1, 1, (1, 0)),
        (0, 1, None),
        (3, 1, (1, 0)),
    ],
)
def test_a_log_that_parted_from_ours_is_told_where(
    offset: int, last_epoch: int, expected: tuple[int, int] | None
) -> None:
    """KIP-595; told at once, so that the client can cut its log off."""
    plane = _epochs()
    fetched = plane.fetch(
        [("t", 0, offset)],
        version=12,
        max_wait_ms=500 if expected else 0,
        partition={"last_fetched_epoch": last_epoch},
    )
    diverging = fetched.only.diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (expected or (-1, -1))
    assert fetched.errors == [0]
    assert bool(fetched.values("t")) == (expected is None and offset < 5)


@pytest.mark.parametrize(("offset", "last_epoch"), [(5, 6), (6, 5), (0, 7)])
def test_an_epoch_that_we_cannot_answer_for_is_out_of_range(offset: int, last_epoch: int) -> None:
    plane = _epochs()
    if (offset, last_epoch) == (6, 5):
        fetched = plane.fetch([("t", 0, 6)], version=12, partition={"last_fetched_epoch": 5})
        assert fetched.only.diverging_epoch.end_offset == 5
        return
    fetched = plane.fetch(
        [("t", 0, offset)], version=12, partition={"last_fetched_epoch": last_epoch}
    )
    assert fetched.errors == [ErrorCode.OFFSET_OUT_OF_RANGE]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failed_directory_has_a_code_that_the_client_knows(version: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    plane.leader("t").log.owner.failed(OSError(5, "gone"))
    code = ErrorCode.KAFKA_STORAGE_ERROR if version >= 6 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert plane.fetch([("t", 0, 0)], version=version).errors == [code]


def test_a_file_that_is_gone_is_a_storage_error_and_pins_nothing() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    plane.disk.faults.fail_directory("/data")
    for segment in plane.leader("t").log.segments:
        segment.log._close()
    assert plane.fetch([("t", 0, 0)]).errors == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert pinned(plane) == 0


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, 0)]
)
def test_a_zstd_topic_needs_version_10(version: int, code: int) -> None:
    plane = plane_with(config=LogConfig(compression=Codec.ZSTD))
    plane.fill("t", b"a")
    assert plane.fetch([("t", 0, 0)], version=version).errors == [code]


def replica_state(version: int) -> dict[str, Any]:
    if version >= 15:
        return {"replica_state": ReplicaState(replica_id=3, replica_epoch=9)}
    return {"replica_id": 3}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("proven", [None, 4])
def test_only_the_broker_itself_fetches_as_a_follower(version: int, proven: int | None) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    if proven is not None:
        plane.peer.prove(BrokerId(proven))
    fetched = plane.fetch([("t", 0, 0)], version=version, **replica_state(version))
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert {fetched.response.error_code, *fetched.errors} <= {0, refused}
    assert refused in {fetched.response.error_code, *fetched.errors}


@pytest.mark.parametrize("version", VERSIONS)
def test_followers_are_told_that_they_are_no_replicas(version: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    plane.peer.prove(BrokerId(3))
    state = replica_state(version)
    fetched = plane.fetch([("t", 0, 0)], version=version, **state)
    assert fetched.errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    if version >= 9:
        fetched = plane.fetch(
            [("t", 0, 0)], version=version, partition={"current_leader_epoch": 0}, **state
        )
        assert fetched.errors == [ErrorCode.UNKNOWN_LEADER_EPOCH]


def test_the_debugging_replica_id_reads_as_a_consumer() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    assert plane.fetch([("t", 0, 0)], version=12, replica_id=-2).values("t") == [b"a"]


def test_a_malformed_request_closes_the_connection() -> None:
    plane = plane_with()

    class Cut:
        API_KEY = FetchRequest.API_KEY

        def encode(self, version: int) -> bytes:
            return FetchRequest(max_wait_ms=1, min_bytes=1).encode(version)[:-3]

    plane.send(Cut(), 12)
    assert "malformed FETCH" in plane.peer.closed


def test_a_new_partition_is_served_to_a_client_that_asked_too_early() -> None:
    plane = plane_with()
    assert plane.fetch([("t", 1, 0)]).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    plane.apply(ImageChange(grown=[GrownTopic(topic_image("t", partitions=2), 1)]))
    assert plane.fetch([("t", 1, 0)]).errors == [0]


def test_an_unknown_id_is_not_mistaken_for_no_id() -> None:
    plane = plane_with()
    request = plane.fetch_request([("t", 0, 0)])
    request.topics[0].topic_id = UUID(int=0)
    assert plane.fetched(plane.send(request, 17)).errors == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_bytes_out_are_counted() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    size = len(plane.fetch([("t", 0, 0)]).only.records or b"")
    assert plane.leader("t").bytes_out == size > 0
