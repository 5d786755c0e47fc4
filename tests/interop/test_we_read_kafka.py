"""Our engine opens the data directory of a real Kafka and finds what Kafka's clients found."""

from pathlib import Path

import pytest

from kits.interop.kafka_workload import COMPACTED_TOPICS, TOPICS
from kits.interop.kafka_world import KafkaDirectory, KafkaWorld, copy_tree
from kits.interop.our_log import config_of, open_log
from kits.interop.our_records import decode_all, read_committed, read_uncommitted
from millstream.model.ids import Offset, TimestampMs
from millstream.storage import names
from millstream.storage.recovery.loader import LoadReport

pytestmark = pytest.mark.interop

TOPIC_NAMES = list(TOPICS)
CHECKPOINTS = (
    names.RECOVERY_POINTS,
    names.HIGH_WATERMARKS,
    names.LOG_STARTS,
    names.CLEANER_OFFSETS,
)


def take_copy(directory: KafkaDirectory, topic: str, target: Path) -> Path:
    """One partition with the checkpoint files, to be opened and changed."""
    target.mkdir()
    for name in (*CHECKPOINTS, f"{topic}-0"):
        copy_tree(directory.path / name, target / name)
    return target


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_cleanly_closed_log_is_read_without_recovery(
    topic: str, world: KafkaWorld, tmp_path: Path
) -> None:
    reference = world.clean.reference[f"{topic}-0"]
    data = take_copy(world.clean, topic, tmp_path / "data")
    report = LoadReport()
    with open_log(data, topic, config_of(TOPICS[topic]), is_clean=True, report=report) as log:
        end = Offset(reference.end)
        assert report == LoadReport(log_end=end, stored_high_watermark=end)
        assert (log.log_start, log.log_end) == (reference.start, reference.end)
        assert (log.high_watermark, log.last_stable_offset) == (reference.end, reference.stable)
        assert read_uncommitted(log) == reference.uncommitted
        assert read_committed(log) == reference.committed


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_log_of_a_killed_broker_is_recovered_whole(
    topic: str, world: KafkaWorld, tmp_path: Path
) -> None:
    reference = world.unclean.reference[f"{topic}-0"]
    data = take_copy(world.unclean, topic, tmp_path / "data")
    report = LoadReport()
    with open_log(data, topic, config_of(TOPICS[topic]), is_clean=False, report=report) as log:
        assert report.cut_bytes == 0
        assert (log.log_start, log.log_end) == (reference.start, reference.end)
        log.set_high_watermark(log.log_end)
        assert log.last_stable_offset == reference.stable
        assert read_uncommitted(log) == reference.uncommitted
        assert read_committed(log) == reference.committed


@pytest.mark.parametrize("topic", TOPIC_NAMES)
@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_times_are_found_where_kafka_finds_them(
    topic: str, state: str, world: KafkaWorld, tmp_path: Path
) -> None:
    directory: KafkaDirectory = getattr(world, state)
    reference = directory.reference[f"{topic}-0"]
    data = take_copy(directory, topic, tmp_path / "data")
    with open_log(data, topic, config_of(TOPICS[topic]), is_clean=state == "clean") as log:
        places = [
            log.find_timestamp(TimestampMs(asked.requested_ms)) for asked in reference.by_time
        ]
    found = [(place.offset, place.timestamp_ms) if place else (-1, -1) for place in places]
    if topic in COMPACTED_TOPICS:
        # Kafka takes an emptied segment's file time for its newest record and then finds nothing
        # in it, so its own answers are no measure here.
        assert found == expected_lookups(directory, topic)
    else:
        assert found == [(asked.offset, asked.timestamp_ms) for asked in reference.by_time]


def expected_lookups(directory: KafkaDirectory, topic: str) -> list[tuple[int, int]]:
    """First record, in the order of offsets, at or after the time; control records count."""
    records = [
        ours.record
        for path in sorted((directory.path / f"{topic}-0").glob("*.log"))
        for ours in decode_all(path.read_bytes())
    ]
    asked = [lookup.requested_ms for lookup in directory.reference[f"{topic}-0"].by_time]
    return [
        next(((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= at), (-1, -1))
        for at in asked
    ]
