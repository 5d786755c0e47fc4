"""Whoever keeps its state in a topic: told of its leaderships, and of what counts."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.broker.data_plane import BROKER, DataPlane, HeldBackground
from kits.storage.log_stories import batch_of
from millstream.model.errors import StorageFailed
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.replication.errors import NotEnoughReplicas
from millstream.replication.partition import LeaderFacts
from millstream.storage.config import LogConfig
from millstream.storage.ports import PartitionLog

EACH = LogConfig(flush_messages=1)


class Watcher:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.on_mark: Callable[[], None] = lambda: None

    def leadership_gained(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
        self.heard.append(f"gained {log.partition} {leader_epoch}")

    def leadership_lost(self, log: PartitionLog) -> None:
        self.heard.append(f"lost {log.partition}")

    def high_watermark_moved(self, log: PartitionLog) -> None:
        self.heard.append(f"{log.partition} up to {log.high_watermark}")
        self.on_mark()


def watched(**options: Any) -> tuple[DataPlane, Watcher]:
    watcher = Watcher()
    return DataPlane(listeners={"t": watcher}, **options), watcher


def test_partitions_of_the_topic_are_told_as_they_are_led_and_no_others() -> None:
    plane, watcher = watched()
    plane.create("other", number=8)
    plane.create("t", 2)
    assert watcher.heard == ["gained t-0 0", "gained t-1 0"]
    plane.delete("other")
    plane.delete("t")
    assert watcher.heard[2:] == ["lost t-0", "lost t-1"]
    plane.create("t")
    assert watcher.heard[4:] == ["gained t-0 0"]


def test_all_leaderships_end_with_the_session() -> None:
    plane, watcher = watched()
    plane.create("t", 2)
    plane.partitions.close_all_leaderships()
    assert watcher.heard[2:] == ["lost t-0", "lost t-1"]


def test_append_returns_when_the_log_has_it_and_it_counts_later() -> None:
    """I-01. The flush that the topic asks for is part of what is waited for."""
    background = HeldBackground()
    plane, watcher = watched(config=EACH, background=background)
    plane.create("t")
    leader = plane.leader("t")
    outcome = leader.append_now(batch_of(b"a", b"b"))
    assert (outcome.base_offset, outcome.last_offset, outcome.error) == (0, 1, None)
    assert (leader.log_end, leader.high_watermark) == (2, 0)
    assert watcher.heard == ["gained t-0 0"]
    background.run()
    assert watcher.heard[1:] == ["t-0 up to 2"]


def test_high_watermark_may_move_inside_of_the_append() -> None:
    plane, watcher = watched()
    plane.create("t")
    leader = plane.leader("t")
    ends = []
    watcher.on_mark = lambda: ends.append(leader.log_end)
    leader.append_now(batch_of(b"a"))
    leader.append_now(batch_of(b"b"))
    assert watcher.heard[1:] == ["t-0 up to 1", "t-0 up to 2"]
    assert ends == [1, 2]


def test_append_without_enough_replicas_writes_nothing() -> None:
    plane, _ = watched()
    plane.create("t")
    leader = plane.leader("t")
    others = (BROKER, BrokerId(2), BrokerId(3))
    leader.configure(LeaderFacts(leader.topic_id, BROKER, LeaderEpoch(1), others, (BROKER,), 2))
    with pytest.raises(NotEnoughReplicas):
        leader.append_now(batch_of(b"a"))
    assert leader.log_end == 0


def test_append_to_a_failed_directory_is_refused() -> None:
    plane, _ = watched()
    plane.create("t")
    leader = plane.leader("t")
    leader.log.owner.failed(OSError(5, "broken"))
    with pytest.raises(StorageFailed):
        leader.append_now(batch_of(b"a"))
