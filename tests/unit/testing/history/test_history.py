"""The checker of histories finds each anomaly, and nothing in a history that is good."""

from collections.abc import Callable

import pytest

from millstream.testing.history.checker import NEVER, History, Outcome, Send, check_history

PLACE = ("t/1", 0)
OTHER = ("t/1", 1)


class Told:
    """A history as tests write it."""

    def __init__(self) -> None:
        self.history = History()
        self._numbers: dict[str, int] = {}

    def send(self, *values: bytes, lane: str = "p", place: tuple[str, int] = PLACE) -> Send:
        number = self._numbers[lane] = self._numbers.get(lane, 0) + 1
        return self.history.send(lane, number, place, values)

    def ok(self, offset: int, *values: bytes, lane: str = "p") -> None:
        self.history.acknowledged(self.send(*values, lane=lane), offset)

    def poll(self, *polls: tuple[int, bytes], is_fenced: bool = True) -> None:
        run = self.history.seek("c", PLACE, is_fenced=is_fenced)
        for offset, value in polls:
            self.history.polled(run, offset, [(offset, value)])

    def end(self, *records: tuple[int, bytes], start: int = 0) -> None:
        self.history.read_in_the_end(PLACE, start, records)

    def kinds(self) -> list[str]:
        return sorted({one.kind for one in check_history(self.history)})


def test_a_good_history() -> None:
    """Two producers, a lost answer, a batch that was refused, a consumer that comes twice."""
    told = Told()
    told.ok(0, b"a", b"b")
    told.ok(2, b"x", lane="q")
    told.send(b"maybe")
    told.send(b"maybe not")
    told.history.refused(told.send(b"never"))
    told.poll((0, b"a"), (1, b"b"), (2, b"x"))
    told.poll((1, b"b"), (2, b"x"), (3, b"maybe"))
    told.end((0, b"a"), (1, b"b"), (2, b"x"), (3, b"maybe"))
    assert told.kinds() == []


def lost_write(told: Told) -> None:
    told.ok(0, b"a")
    told.ok(1, b"b")
    told.end((0, b"a"))


def lost_read(told: Told) -> None:
    told.ok(0, b"a")
    told.send(b"b")
    told.poll((0, b"a"), (1, b"b"))
    told.end((0, b"a"))


def duplicate(told: Told) -> None:
    told.ok(0, b"a")
    told.end((0, b"a"), (1, b"a"))


def duplicate_that_only_a_consumer_saw(told: Told) -> None:
    told.ok(0, b"a")
    told.poll((0, b"a"), (1, b"a"))
    told.end((0, b"a"), start=5)


def inconsistent_offsets(told: Told) -> None:
    told.ok(0, b"a")
    told.ok(0, b"b", lane="q")
    told.end(start=1)


def nonmonotonic_send(told: Told) -> None:
    told.send(b"a")
    told.ok(0, b"b")
    told.end((0, b"b"), (1, b"a"))


def nonmonotonic_poll(told: Told) -> None:
    told.ok(0, b"a", b"b")
    told.poll((1, b"b"), (0, b"a"))
    told.end((0, b"a"), (1, b"b"))


def poll_skip(told: Told) -> None:
    told.ok(0, b"a", b"b", b"c")
    told.poll((0, b"a"), (2, b"c"))
    told.end((0, b"a"), (1, b"b"), (2, b"c"))


def poll_skip_at_the_first_record(told: Told) -> None:
    told.ok(0, b"a", b"b")
    run = told.history.seek("c", PLACE, is_fenced=True)
    told.history.polled(run, 0, [(1, b"b")])
    told.end((0, b"a"), (1, b"b"))


def phantom_never_sent(told: Told) -> None:
    told.end((0, b"who?"))
    told.send(b"a")


def phantom_that_was_refused(told: Told) -> None:
    told.history.refused(told.send(b"a"))
    told.end((0, b"a"))


def phantom_of_another_partition(told: Told) -> None:
    told.send(b"a", place=OTHER)
    told.send(b"b")
    told.end((0, b"a"))


BAD: list[tuple[str, Callable[[Told], None]]] = [
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
def test_each_anomaly_is_found_and_no_other(kind: str, story: Callable[[Told], None]) -> None:
    told = Told()
    story(told)
    assert told.kinds() == [kind]


def after_loss(*, floor: int) -> Told:
    """Offsets 1 and 2 went with the power; another record got 1."""
    told = Told()
    told.ok(0, b"a", b"b", b"c")
    told.poll((0, b"a"), (1, b"b"))
    told.history.lost_power(PLACE, end=1, floor=floor)
    told.ok(1, b"d", lane="q")
    told.end((0, b"a"), (1, b"d"))
    return told


def test_what_was_not_flushed_may_go_with_the_power() -> None:
    assert after_loss(floor=1).kinds() == []


@pytest.mark.parametrize("floor", [2, 3, NEVER])
def test_what_was_flushed_may_not(floor: int) -> None:
    """I-01, I-11: at offset 1 there is another record now, offset 2 is empty."""
    kinds = after_loss(floor=floor).kinds()
    assert kinds == (["lost-write"] if floor > 2 else [])


def test_a_record_sent_again_after_it_was_lost_is_no_duplicate() -> None:
    told = Told()
    told.send(b"a", b"b")
    told.poll((0, b"a"), (1, b"b"))
    told.history.lost_power(PLACE, end=0, floor=0)
    send = told.history.sends[0]
    told.history.acknowledged(send, 5)
    assert send.outcome is Outcome.OK
    told.end((5, b"a"), (6, b"b"))
    assert told.kinds() == []


@pytest.mark.parametrize(("is_fenced", "kinds"), [(True, ["poll-skip"]), (False, [])])
def test_a_consumer_that_names_epochs_must_hear_of_a_lost_tail(
    is_fenced: bool, kinds: list[str]
) -> None:
    """I-32, KIP-320: it read up to 2, the log went back to 1 and grew again."""
    told = Told()
    told.ok(0, b"a", b"b", b"c")
    run = told.history.seek("c", PLACE, is_fenced=is_fenced)
    told.history.polled(run, 0, [(0, b"a"), (1, b"b"), (2, b"c")])
    told.history.lost_power(PLACE, end=1, floor=0)
    told.ok(1, b"d", b"e", b"f", lane="q")
    told.history.polled(run, 3, [])
    told.history.polled(run, 3, [(3, b"f")])
    told.end((0, b"a"), (1, b"d"), (2, b"e"), (3, b"f"))
    assert told.kinds() == kinds
