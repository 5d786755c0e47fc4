"""Defects of the log that were found once and must not come back."""

from pathlib import Path
from uuid import UUID

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story
from kits.storage.manager_stories import Broker
from millstream.model.errors import InvalidRecords
from millstream.model.ids import TimestampMs, TopicId, TopicPartition
from millstream.runtime.disk import remove_tree
from millstream.runtime.os_disk import OsDisk
from millstream.storage.directories.clean_shutdown import is_present
from millstream.storage.log.reader import Isolation
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker
from millstream.testing.sim.crash_fates import keep_none


def transaction(base: int, *, is_commit: bool, size: int) -> bytearray:
    """One record and its marker, as a leader would send them."""
    data = BatchSpec(
        base_offset=base,
        producer_id=7,
        producer_epoch=0,
        base_sequence=base,
        is_transactional=True,
        timestamp_ms=NOW,
    )
    marker = data._replace(base_offset=base + 1)
    return build_batch([(b"k", bytes(size))], data) + build_marker(marker, is_commit=is_commit)


def test_markers_behind_a_split_of_a_large_fetch_are_read_where_they_are() -> None:
    """A fetch of more than a segment is split; the second part has markers too (I-23)."""
    story = Story()
    fetched = bytearray()
    for number in range(12):
        fetched += transaction(number * 2, is_commit=number % 2 == 0, size=400)
    assert len(fetched) > 2 * story.log.config.segment_bytes
    story.log.append_as_follower(fetched)
    story.log.set_high_watermark(story.log.log_end)
    visible = read_all(story.log, isolation=Isolation.COMMITTED)
    assert [record.offset for record in visible] == list(range(0, 24, 4))
    assert scan_partition(story.disk, DIRECTORY).problems == []


def test_the_last_of_all_offsets_is_refused() -> None:
    story = Story()
    batch = build_batch([(b"k", b"v")], BatchSpec(base_offset=2**63 - 1))
    with pytest.raises(InvalidRecords, match="offset"):
        story.log.append_as_follower(batch)
    assert story.log.log_end == 0


def test_removing_a_tree_leaves_alone_what_its_links_lead_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("data")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "inner" / "file").symlink_to(outside / "precious")
    remove_tree(OsDisk(), str(tree))
    assert not tree.exists()
    assert (outside / "precious").read_text() == "data"
    (tmp_path / "alias").symlink_to(outside)
    remove_tree(OsDisk(), str(tmp_path / "alias"))
    assert (outside / "precious").exists()


def test_a_rebuilt_index_of_a_trusted_segment_survives_a_power_loss() -> None:
    """It is not checked again after a crash, so a part of it would stay forever."""
    story = Story()
    story.fill(60)
    story.log.flush()
    path = f"{DIRECTORY}/{0:020d}.timeindex"
    size = story.disk.size(path)
    assert size
    story.disk.remove(path)
    story.disk.sync_directory(DIRECTORY)
    for segment in story.log.segments:
        segment.forget()
        segment.max_timestamp = None
    assert story.log.find_timestamp(TimestampMs(NOW + 2)) is not None
    story.disk.crash()
    assert story.disk.after_crash(keep_none).size(path) == size


def test_no_clean_stop_is_claimed_while_a_partition_was_not_opened() -> None:
    """It was not recovered either: the next start must check it."""
    broker = Broker()
    one = TopicPartition("one", 0)
    broker.manager.create(one, TopicId(UUID(int=1)), SMALL_SEGMENTS)
    broker.stop()
    with broker.disk.open_write(f"{broker.roots[0]}/{one}/partition.metadata") as file:
        file.truncate(3)
    assert one in broker.start().unusable_partitions
    broker.stop()
    assert not is_present(broker.disk, broker.roots[0])
