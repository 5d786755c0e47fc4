"""AlterReplicaLogDirs, versions 1-2."""

import errno

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.broker.versions import versions_of
from kits.storage.compaction_kit import StepBackground
from millstream.broker.handlers import alter_replica_log_dirs
from millstream.testing.log_kit import read_all
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)

HERE, THERE = "/data", "/other"


@pytest.fixture
def desk() -> LogDesk:
    desk = LogDesk()
    desk.put(*(b"%d" % number for number in range(5)))
    assert desk.leader.log.owner.path == HERE
    return desk


def request_for(path: str, name: str = TOPIC, *indexes: int) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirTopic(name=name, partitions=list(indexes) or [0])
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])


def ask(desk: LogDesk, request: AlterReplicaLogDirsRequest, version: int = 2) -> list[str]:
    response = desk.send(alter_replica_log_dirs, request, AlterReplicaLogDirsResponse, version)
    return [code for result in response.results for code in codes(result.partitions)]


@pytest.mark.parametrize("version", versions_of(alter_replica_log_dirs))
def test_every_version_moves(desk: LogDesk, version: int) -> None:
    before = read_all(desk.leader.log)
    assert ask(desk, request_for(THERE), version) == ["NONE"]
    assert desk.leader.log.owner.path == THERE
    assert read_all(desk.leader.log) == before
    desk.put(b"and on")
    assert ask(desk, request_for(THERE), version) == ["NONE"]
    assert ask(desk, request_for(HERE), version) == ["NONE"]
    assert desk.leader.log.owner.path == HERE
    assert read_all(desk.leader.log)[-1].value == b"and on"


def test_another_wish_replaces_the_first(desk: LogDesk) -> None:
    moves, steps = desk.logs.moves, StepBackground()
    moves._dependencies = moves._dependencies._replace(background=steps)
    assert ask(desk, request_for(THERE)) == ["NONE"]
    steps.run_next()
    assert ask(desk, request_for(THERE)) == ["NONE"]
    assert len(moves.in_progress()) == 1
    assert ask(desk, request_for(HERE)) == ["NONE"]
    assert moves.in_progress() == []
    steps.run_all()
    assert desk.leader.log.owner.path == HERE


def test_of_two_wishes_in_one_request_the_last_counts(desk: LogDesk) -> None:
    request = request_for(THERE)
    request.dirs += request_for(HERE).dirs
    assert ask(desk, request) == ["NONE"]
    assert desk.leader.log.owner.path == HERE


@pytest.mark.parametrize("path", ["/nowhere", "", "other", "/other/", "/data/../other"])
def test_a_path_that_is_none_of_ours(desk: LogDesk, path: str) -> None:
    assert ask(desk, request_for(path)) == ["LOG_DIR_NOT_FOUND"]
    assert ask(desk, request_for(path, "nope")) == ["LOG_DIR_NOT_FOUND"]


def test_a_partition_that_does_not_exist_yet_is_created_there(desk: LogDesk) -> None:
    assert ask(desk, request_for(HERE, "later")) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    desk.create("later")
    assert desk.partitions.get(("later", 0)).log.owner.path == HERE
    assert ask(desk, request_for(HERE, "later", 1)) == ["UNKNOWN_TOPIC_OR_PARTITION"]


def test_names_that_cannot_be(desk: LogDesk) -> None:
    assert ask(desk, request_for(THERE, "x" * 249)) == ["INVALID_TOPIC_EXCEPTION"]
    assert ask(desk, request_for(THERE, "a/b")) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert ask(desk, request_for(THERE, TOPIC, -1)) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert not desk.logs.moves._preferred


def test_no_move_while_a_directory_is_offline(desk: LogDesk) -> None:
    desk.logs.directories[1].failed(OSError(errno.EIO, "gone"))
    assert ask(desk, request_for(THERE)) == ["KAFKA_STORAGE_ERROR"]
    assert ask(desk, request_for(HERE)) == ["NONE"]
    desk.logs.directories[0].failed(OSError(errno.EIO, "gone"))
    assert ask(desk, request_for(HERE)) == ["KAFKA_STORAGE_ERROR"]


def test_a_full_disk_is_told(desk: LogDesk) -> None:
    desk.disk.faults.fail_next("make_directory", errno.ENOSPC, path_part=THERE)
    assert ask(desk, request_for(THERE)) == ["KAFKA_STORAGE_ERROR"]
    assert desk.logs.directories[1].failure is None
    assert ask(desk, request_for(THERE)) == ["NONE"]


@pytest.mark.parametrize("version", versions_of(alter_replica_log_dirs))
def test_failure_of_the_whole(version: int) -> None:
    error = ErrorCode.KAFKA_STORAGE_ERROR
    response = alter_replica_log_dirs.failed(request_for(THERE, TOPIC, 0, 1), error, version)
    again = AlterReplicaLogDirsResponse.decode(memoryview(response.encode(version)), version)
    assert codes(again.results[0].partitions) == ["KAFKA_STORAGE_ERROR"] * 2
