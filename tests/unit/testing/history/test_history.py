"""The checker of histories finds each anomaly, and nothing in a history that is good."""

from collections.abc import Callable

import pytest

from millstream.testing.history.checker import NEVER, History, Outcome, Send, check_history

PARTITION = ("t/1", 0)
OTHER = ("t/1", 1)


class RecordedHistory:
    """A history as tests write it."""

    def __init__(self) -> None:
        self.history = History()
        self._numbers: dict[str, int] = {}

    def send(self, *values: bytes, lane: str = "p", partition: tuple[str, int] = PARTITION) -> Send:
        number = self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return self.history.send(lane, number, partition, values)

    def ok(self, offset: int, *values: bytes, lane: str = "p") -> None:
        self.history.acknowledged(self.send(*values, lane=lane), offset)

    def poll(self, *polls: tuple[int, bytes], is_fenced: bool = True) -> None:
        run = self.history.seek("c", PARTITION, is_fenced=is_fenced)
        for offset, value in polls:
            self.history.polled(run, offset, [(offset, value)])

    def end(self, *records: tuple[int, bytes], start: int = 0) -> None:
        self.history.record_final_read(PARTITION, start, records)

    def kinds(self) -> list[str]:
        return sorted({one.kind for one in check_history(self.history)})


def test_a_good_history() -> None:
    """Two producers, a lost answer, a batch that was refused, a consumer that comes twice."""
    recorded = RecordedHistory()
    recorded.ok(0, b"a", b"b")
    recorded.ok(2, b"x", lane="q")
    recorded.send(b"maybe")
    recorded.send(b"maybe not")
    recorded.history.refused(recorded.send(b"never"))
    recorded.poll((0, b"a"), (1, b"b"), (2, b"x"))
    recorded.poll((1, b"b"), (2, b"x"), (3, b"maybe"))
    recorded.end((0, b"a"), (1, b"b"), (2, b"x"), (3, b"maybe"))
    assert recorded.kinds() == []


def lost_write(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a")
    recorded.ok(1, b"b")
    recorded.end((0, b"a"))


def lost_read(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a")
    recorded.send(b"b")
    recorded.poll((0, b"a"), (1, b"b"))
    recorded.end((0, b"a"))


def duplicate(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a")
    recorded.end((0, b"a"), (1, b"a"))


def duplicate_that_only_a_consumer_saw(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a")
    recorded.poll((0, b"a"), (1, b"a"))
    recorded.end((0, b"a"), start=5)


def inconsistent_offsets(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a")
    recorded.ok(0, b"b", lane="q")
    recorded.end(start=1)


def nonmonotonic_send(recorded: RecordedHistory) -> None:
    recorded.send(b"a")
    recorded.ok(0, b"b")
    recorded.end((0, b"b"), (1, b"a"))


def nonmonotonic_poll(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a", b"b")
    recorded.poll((1, b"b"), (0, b"a"))
    recorded.end((0, b"a"), (1, b"b"))


def poll_skip(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a", b"b", b"c")
    recorded.poll((0, b"a"), (2, b"c"))
    recorded.end((0, b"a"), (1, b"b"), (2, b"c"))


def poll_skip_at_the_first_record(recorded: RecordedHistory) -> None:
    recorded.ok(0, b"a", b"b")
    run = recorded.history.seek("c", PARTITION, is_fenced=True)
    recorded.history.polled(run, 0, [(1, b"b")])
    recorded.end((0, b"a"), (1, b"b"))


def phantom_never_sent(recorded: RecordedHistory) -> None:
    recorded.end((0, b"who?"))
    recorded.send(b"a")


def phantom_that_was_refused(recorded: RecordedHistory) -> None:
    recorded.history.refused(recorded.send(b"a"))
    recorded.end((0, b"a"))


def phantom_of_another_partition(recorded: RecordedHistory) -> None:
    recorded.send(b"a", partition=OTHER)
    recorded.send(b"b")
    recorded.end((0, b"a"))


BAD: list[tuple[str, Callable[[RecordedHistory], None]]] = [
    ("lost-write", lost_write),
    ("lost-read", lost_read),
    ("duplicate", duplicate),
    ("duplicate", duplicate_that_only_a_consumer_saw),
    ("inconsistent-offsets", inconsistent_offsets),
    ("nonmonotonic-send", nonmonotonic_send),
    ("nonmonotonic-poll", nonmonotonic_poll),
    ("poll-skip", poll_skip),
    ("poll-skip", poll_skip_at_the_first_record),
    ("phantom", phantom_never_sent),
    ("phantom", phantom_that_was_refused),
    ("phantom", phantom_of_another_partition),
]


@pytest.mark.parametrize(("kind", "story"), BAD, ids=lambda one: getattr(one, "__name__", one))
def test_each_anomaly_is_found_and_no_other(
    kind: str, story: Callable[[RecordedHistory], None]
) -> None:
    recorded = RecordedHistory()
    story(recorded)
    assert recorded.kinds() == [kind]


def after_loss(*, floor: int) -> RecordedHistory:
    """Offsets 1 and 2 went with the power; another record got 1."""
    recorded = RecordedHistory()
    recorded.ok(0, b"a", b"b", b"c")
    recorded.poll((0, b"a"), (1, b"b"))
    recorded.history.lost_power(PARTITION, end=1, floor=floor)
    recorded.ok(1, b"d", lane="q")
    recorded.end((0, b"a"), (1, b"d"))
    return recorded


def test_what_was_not_flushed_may_go_with_the_power() -> None:
    assert after_loss(floor=1).kinds() == []


@pytest.mark.parametrize("floor", [2, 3, NEVER])
def test_what_was_flushed_may_not(floor: int) -> None:
    """I-01, I-11: at offset 1 there is another record now, offset 2 is empty."""
    kinds = after_loss(floor=floor).kinds()
    assert kinds == (["lost-write"] if floor > 2 else [])


def test_a_record_sent_again_after_it_was_lost_is_no_duplicate() -> None:
    recorded = RecordedHistory()
    recorded.send(b"a", b"b")
    recorded.poll((0, b"a"), (1, b"b"))
    recorded.history.lost_power(PARTITION, end=0, floor=0)
    send = recorded.history.sends[0]
    recorded.history.acknowledged(send, 5)
    assert send.outcome is Outcome.OK
    recorded.end((5, b"a"), (6, b"b"))
    assert recorded.kinds() == []


@pytest.mark.parametrize(("is_fenced", "kinds"), [(True, ["poll-skip"]), (False, [])])
def test_a_consumer_that_names_epochs_must_hear_of_a_lost_tail(
    is_fenced: bool, kinds: list[str]
) -> None:
    """I-32, KIP-320: it read up to 2, the log went back to 1 and grew again."""
    recorded = RecordedHistory()
    recorded.ok(0, b"a", b"b", b"c")
    run = recorded.history.seek("c", PARTITION, is_fenced=is_fenced)
    recorded.history.polled(run, 0, [(0, b"a"), (1, b"b"), (2, b"c")])
    recorded.history.lost_power(PARTITION, end=1, floor=0)
    recorded.ok(1, b"d", b"e", b"f", lane="q")
    recorded.history.polled(run, 3, [])
    recorded.history.polled(run, 3, [(3, b"f")])
    recorded.end((0, b"a"), (1, b"d"), (2, b"e"), (3, b"f"))
    assert recorded.kinds() == kinds
