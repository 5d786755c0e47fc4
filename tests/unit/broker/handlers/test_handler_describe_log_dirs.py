"""DescribeLogDirs, versions 1-5."""

import errno

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.versions import versions_of
from kits.storage.compaction_kit import StepBackground
from millstream.broker.handlers import describe_log_dirs
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)


@pytest.fixture
def desk() -> LogDesk:
    desk = LogDesk()
    desk.create("other", 2)
    desk.put(*(b"%d" % number for number in range(5)))
    return desk


def ask(
    desk: LogDesk, wanted: dict[str, list[int]] | None = None, version: int = 5
) -> DescribeLogDirsResponse:
    topics = None
    if wanted is not None:
        topics = [
            DescribableLogDirTopic(topic=name, partitions=some) for name, some in wanted.items()
        ]
    request = DescribeLogDirsRequest(topics=topics)
    return desk.send(describe_log_dirs, request, DescribeLogDirsResponse, version)


def partitions_in(result: DescribeLogDirsResult) -> dict[tuple[str, int], DescribeLogDirsPartition]:
    return {
        (topic.name, one.partition_index): one
        for topic in result.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", versions_of(describe_log_dirs))
def test_every_version_tells_what_lies_where(desk: LogDesk, version: int) -> None:
    response = ask(desk, version=version)
    assert response.error_code == 0
    assert [one.log_dir for one in response.results] == ["/data", "/other"]
    found = [partitions_in(one) for one in response.results]
    assert len(found[0]) + len(found[1]) == 3
    for log in desk.logs:
        [shown] = [one[log.partition] for one in found if log.partition in one]
        assert shown.partition_size == log.size_bytes
        assert (shown.offset_lag, shown.is_future_key) == (0, False)
    for result in response.results:
        assert (result.total_bytes > 0) == (version >= 4)
        assert (result.usable_bytes > 0) == (version >= 4)
        assert not result.is_cordoned


def test_only_what_was_asked_for(desk: LogDesk) -> None:
    def shown(wanted: dict[str, list[int]]) -> list[tuple[str, int]]:
        return [one for result in ask(desk, wanted).results for one in partitions_in(result)]

    assert shown({TOPIC: [0, 1], "nope": [0]}) == [(TOPIC, 0)]
    assert shown({"other": [1]}) == [("other", 1)]
    assert shown({}) == []


def test_a_copy_on_its_way_is_shown_in_its_new_place(desk: LogDesk) -> None:
    moves = desk.logs.moves
    steps = StepBackground()
    moves._dependencies = moves._dependencies._replace(background=steps)
    target = next(one.path for one in desk.logs.directories if one is not desk.leader.log.owner)
    moves.move(desk.leader.partition, target)

    def found(is_future: bool) -> DescribeLogDirsPartition | None:
        for result in ask(desk, {TOPIC: [0]}).results:
            if (result.log_dir == target) == is_future:
                return partitions_in(result).get((TOPIC, 0))
        return None

    copy = found(True)
    assert copy is not None
    assert (copy.partition_size, copy.offset_lag, copy.is_future_key) == (0, 5, True)
    steps.run_next()
    copy, current = found(True), found(False)
    assert copy is not None
    assert current is not None
    assert (copy.partition_size, copy.offset_lag) == (current.partition_size, 0)
    assert not current.is_future_key
    steps.run_all()
    copy = found(True)
    assert copy is not None
    assert not copy.is_future_key
    assert found(False) is None


def test_a_directory_that_failed(desk: LogDesk) -> None:
    desk.logs.directories[1].failed(OSError(errno.EIO, "gone"))
    good, bad = ask(desk).results
    assert good.error_code == 0
    assert bad.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (bad.log_dir, bad.topics, bad.total_bytes) == ("/other", [], -1)


def test_a_volume_that_does_not_answer(desk: LogDesk) -> None:
    desk.disk.faults.fail_next("stat", path_part="/other")
    assert [one.error_code for one in ask(desk).results] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
    assert desk.logs.directories[1].failure is None


@pytest.mark.parametrize("version", versions_of(describe_log_dirs))
def test_failure_of_the_whole(version: int) -> None:
    error = ErrorCode.KAFKA_STORAGE_ERROR
    response = describe_log_dirs.failed(DescribeLogDirsRequest(topics=None), error, version)
    again = DescribeLogDirsResponse.decode(memoryview(response.encode(version)), version)
    assert again.error_code == (error if version >= 3 else 0)
    assert again.results == []
