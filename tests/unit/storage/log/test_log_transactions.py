"""What read_committed consumers see, live, after restarts and after truncation."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kits.storage.log_stories import Story, of_producer
from millstream.model.errors import (
    InvalidTransactionState,
    StaleProducerEpoch,
)
from millstream.model.ids import Offset
from millstream.storage.log.reader import Isolation
from millstream.storage.producers.machine import StaleCoordinatorEpoch
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all

COMMITTED = Isolation.COMMITTED


def committed(story: Story, start: int = 0) -> list[bytes | None]:
    return [one.value for one in read_all(story.log, start=Offset(start), isolation=COMMITTED)]


def aborted(story: Story, start: int, *, size_max: int = 1 << 20) -> list[AbortedTransaction]:
    return story.log.read(Offset(start), size_max=size_max, isolation=COMMITTED).aborted


def interleaved() -> Story:
    """Producers 1 and 2 write in turns; 1 aborts, 2 commits, 3 stays open."""
    story = Story()
    story.put(b"plain")
    story.put(b"a0", spec=of_producer(1, 0, txn=True))
    story.put(b"b0", spec=of_producer(2, 0, txn=True))
    story.put(b"a1", spec=of_producer(1, 1, txn=True))
    story.end(1, is_commit=False)
    story.put(b"b1", spec=of_producer(2, 1, txn=True))
    story.end(2, is_commit=True)
    story.put(b"c0", spec=of_producer(3, 0, txn=True))
    story.put(b"later")
    story.replicate_all()
    return story


def flush_and_lose_power(story: Story) -> None:
    story.log.flush()
    story.store_checkpoints()
    story.lose_power()


RESTARTS: list[Callable[[Story], None]] = [
    Story.go_on,
    Story.restart,
    Story.kill,
    flush_and_lose_power,
]


@pytest.mark.parametrize("again", RESTARTS, ids=["live", "clean stop", "kill", "power loss"])
def test_aborted_and_undecided_records_are_not_seen(again: Callable[[Story], None]) -> None:
    """I-23."""
    story = interleaved()
    story.store_checkpoints()
    again(story)
    story.replicate_all()
    assert story.log.last_stable_offset == 7
    assert committed(story) == [b"plain", b"b0", b"b1"]
    assert aborted(story, 0) == [(1, 1, 4, 2)]
    story.end(3, is_commit=True)
    story.replicate_all()
    assert committed(story) == [b"plain", b"b0", b"b1", b"c0", b"later"]


def test_a_marker_above_the_high_watermark_decides_nothing_yet() -> None:
    """I-07, I-23: a new leader may not have it."""
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.log.set_high_watermark(Offset(1))
    story.end(1, is_commit=True)
    assert story.log.last_stable_offset == 0
    assert committed(story) == []
    story.replicate_all()
    assert committed(story) == [b"a"]


def many_aborts(count: int = 40) -> Story:
    """Every second transaction is aborted; over several segments."""
    story = Story()
    for number in range(count):
        story.put(b"%030d" % number, spec=of_producer(1, number, txn=True))
        story.end(1, is_commit=number % 2 == 0)
    story.replicate_all()
    assert len(story.log.segments) > 3
    return story


@pytest.mark.parametrize("again", RESTARTS, ids=["live", "clean stop", "kill", "power loss"])
def test_the_list_of_aborted_transactions_is_complete_for_what_was_read(
    again: Callable[[Story], None],
) -> None:
    """I-23, from every offset and with every limit."""
    story = many_aborts()
    story.store_checkpoints()
    again(story)
    story.replicate_all()
    expected = [b"%030d" % number for number in range(0, 40, 2)]
    for start in range(80):
        rest = [value for number, value in enumerate(expected) if 4 * number >= start]
        assert committed(story, start) == rest


def test_the_list_holds_nothing_of_far_away() -> None:
    """I-37: an answer's size must not grow with everything that was ever aborted."""
    story = many_aborts(400)
    for start in (0, 300, 600):
        assert len(aborted(story, start, size_max=200)) <= 12


def test_a_transaction_over_many_segments_is_listed_in_each_of_them() -> None:
    story = Story()
    for number in range(60):
        story.put(b"%040d" % number, spec=of_producer(1, number, txn=True))
    story.end(1, is_commit=False)
    story.put(b"end")
    story.replicate_all()
    assert len(story.log.segments) > 3
    for again in (story.go_on, story.kill, story.restart):
        again()
        story.replicate_all()
        for start in range(0, 61, 7):
            assert aborted(story, start, size_max=150) == [(1, 0, 60, 61)]
        assert committed(story) == [b"end"]


def test_truncation_takes_markers_back() -> None:
    """A follower's tail may hold a decision that the new leader never got."""
    story = interleaved()
    story.log.set_high_watermark(Offset(2))
    story.kill()
    story.log.set_high_watermark(Offset(2))
    story.log.truncate_to(Offset(4))
    assert story.log.producers.states.first_undecided_offset == 1
    story.replicate_all()
    assert story.log.last_stable_offset == 1
    assert aborted(story, 0) == []
    story.end(1, is_commit=True)
    story.end(2, is_commit=False)
    story.replicate_all()
    assert committed(story) == [b"plain", b"a0", b"a1"]
    story.kill()
    story.replicate_all()
    assert committed(story) == [b"plain", b"a0", b"a1"]


def test_truncation_takes_producers_back_too() -> None:
    """I-20: what was cut off must not count as a duplicate when it is sent again."""
    story = Story()
    for number in range(4):
        story.put(b"v%d" % number, spec=of_producer(1, number))
    story.log.truncate_to(Offset(2))
    found = story.put(b"again", spec=of_producer(1, 2))
    assert (found.base_offset, found.is_duplicate) == (2, False)
    assert story.values() == [b"v0", b"v1", b"again"]
    assert story.put(b"v1", spec=of_producer(1, 1)).is_duplicate


def test_a_plain_batch_of_a_producer_in_a_transaction_is_refused() -> None:
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    before = story.facts()
    with pytest.raises(InvalidTransactionState):
        story.put(b"b", spec=of_producer(1, 1))
    assert story.facts() == before


def test_a_late_marker_changes_nothing() -> None:
    """I-24."""
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, epoch=3, txn=True))
    before = story.facts()
    with pytest.raises(StaleProducerEpoch):
        story.end(1, is_commit=True, epoch=2)
    assert story.facts() == before


def test_a_marker_of_a_replaced_coordinator_changes_nothing() -> None:
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.end(1, is_commit=True, coordinator_epoch=5)
    story.put(b"b", spec=of_producer(1, 1, txn=True))
    before = story.facts()
    with pytest.raises(StaleCoordinatorEpoch):
        story.end(1, is_commit=False, coordinator_epoch=4)
    assert story.facts() == before


def test_deleted_records_do_not_hold_back_the_stable_offset_below_the_log_start() -> None:
    """I-05."""
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.put(b"b")
    story.replicate_all()
    story.log.advance_log_start(Offset(2))
    assert story.log.last_stable_offset == 2
    story.end(1, is_commit=False)
    story.replicate_all()
    assert story.log.last_stable_offset == 3


def test_an_index_interval_of_one_byte_changes_nothing() -> None:
    """Every batch indexed: the shortest distance between any two rules."""
    story = Story(config=replace(SMALL_SEGMENTS, index_interval_bytes=1))
    story.fill(30)
    assert story.values() == [b"%040d" % number for number in range(30)]
