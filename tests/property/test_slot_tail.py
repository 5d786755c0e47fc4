"""Where a slot says that the newest batches begin is where they were written, for both twins."""

import importlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.kernels.kernel_twins import twins

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(61, 300)),
    st.tuples(st.just("again"), st.just(0), st.just(0)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("cut"), st.integers(1, 9), st.just(0)),
    st.tuples(st.just("start"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("high watermark"), st.integers(0, 3), st.just(0)),
)


class Truth:
    """A log's offsets and positions, all of them."""

    def __init__(self) -> None:
        self.start = self.end = self.high_watermark = self.position = 0
        self.noted: dict[int, int] = {}

    def tail(self, offset: int, size_max: int, kernel: Any) -> int:
        if self.high_watermark != self.end:
            return int(kernel.NOT_AT_TAIL)
        return self.end_tail(offset, size_max, kernel)

    def end_tail(self, offset: int, size_max: int, kernel: Any) -> int:
        if offset < self.start:
            return int(kernel.NOT_AT_TAIL)
        if offset == self.end:
            return int(kernel.NOTHING_NEW)
        position = dict(list(self.noted.items())[-kernel.ENDS_KEPT :]).get(offset)
        if position is None or not 0 < self.position - position <= size_max:
            return int(kernel.NOT_AT_TAIL)
        return position


@pytest.mark.parametrize("kernel", twins("slots"))
@given(story=st.lists(steps, max_size=60), size_max=st.integers(0, 3000))
@settings(max_examples=150, deadline=None)
def test_a_slot_knows_its_tail(
    kernel: Any, story: list[tuple[str, int, int]], size_max: int
) -> None:
    """I-07."""
    slot, truth = kernel.PartitionSlot(None), Truth()
    for what, number, size in story:
        _step(slot, truth, (what, number, size))
        for offset in range(max(0, truth.end - 90), truth.end + 2):
            found = slot.tail(offset, size_max)
            assert found == truth.tail(offset, size_max, kernel), (what, offset)
            found = slot.end_tail(offset, size_max)
            assert found == truth.end_tail(offset, size_max, kernel), (what, offset)


def _step(slot: Any, truth: Truth, step: tuple[str, int, int]) -> None:
    what, number, size = step
    match what:
        case "append":
            truth.end += number
            truth.position += size
            truth.high_watermark = truth.end
            truth.noted.pop(truth.end, None)
            truth.noted[truth.end] = truth.position
        case "roll":
            truth.noted.clear()
            truth.position = 0
        case "cut":
            truth.noted.clear()
            truth.end = truth.high_watermark = max(truth.start, truth.end - number)
            truth.position = max(0, truth.position - 61 * number)
        case "start":
            truth.start = min(truth.end, truth.start + number)
        case "high watermark":
            truth.high_watermark = max(truth.start, truth.end - number)
    slot.log_start, slot.log_end = truth.start, truth.end
    slot.high_watermark, slot.position = truth.high_watermark, truth.position
    if what in ("roll", "cut"):
        slot.forget_tail()
    elif what == "append" or (what == "again" and truth.noted):
        slot.tail_file = slot.tail_file or object()
        slot.follow(truth.end, truth.position, 8)
        truth.noted[truth.end] = truth.position


@pytest.mark.parametrize("kernel", twins("fetch"))
def test_a_follower_is_told_whatever_moved_and_nothing_else(kernel: Any) -> None:
    """It sees the log's end, so that an append is news to it before it counts."""
    slots = importlib.import_module(kernel.__name__.replace("fetch", "slots"))
    slot = slots.PartitionSlot(None)
    cursor = kernel.Cursor(("t", 0, 1, 5, 1, 3, 100))
    look = kernel.cursors_to_read_for_follower
    assert cursor.log_start == 3
    assert look([cursor]) == [cursor], "not looked at yet"
    cursor.slot, cursor.visible_end = slot, 5
    slot.log_end, slot.high_watermark, slot.log_start = 5, 4, 1
    cursor.sent_high_watermark, cursor.sent_log_start = 4, 1
    assert look([cursor]) == []
    for name in ("log_end", "high_watermark", "log_start"):
        setattr(slot, name, getattr(slot, name) + 1)
        assert look([cursor]) == [cursor], name
        setattr(slot, name, getattr(slot, name) - 1)
    cursor.fetch_offset = 4
    assert look([cursor]) == [cursor]
