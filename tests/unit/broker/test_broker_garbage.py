"""When the garbage collector looks: not in the middle of a large request, and not at everything."""

import gc

import pytest

from millstream.broker import garbage
from millstream.broker.garbage import CHECKS_POSTPONED_MAX, FULL_COLLECTION_EVERY, Garbage


class Noted:
    """In place of the collector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.passes = 100
        self.is_busy = False
        for name in ("collect", "freeze", "unfreeze"):
            monkeypatch.setattr(gc, name, lambda name=name: self.calls.append(name))
        monkeypatch.setattr(gc, "set_threshold", lambda *_: self.calls.append("threshold"))
        monkeypatch.setattr(gc, "get_count", lambda: (0, 0, self.passes))
        self.garbage = Garbage(lambda: self.is_busy)

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_in_somebody_elses_process_nothing_is_touched(noted: Noted) -> None:
    noted.garbage.collect_if_due()
    noted.garbage.freeze()
    assert noted.take() == []


def test_a_look_is_at_what_came_since_the_last(noted: Noted) -> None:
    noted.garbage.begin()
    assert noted.take() == ["threshold", "freeze"]
    noted.garbage.collect_if_due()
    assert noted.take() == ["collect", "freeze"]
    noted.passes = garbage.YOUNG_PASSES_MIN - 1
    noted.garbage.collect_if_due()
    assert noted.take() == []
    noted.garbage.freeze()
    assert noted.take() == ["freeze"]


def test_large_requests_put_a_look_off_but_not_for_ever(noted: Noted) -> None:
    noted.garbage.begin()
    noted.take()
    noted.is_busy = True
    for _ in range(CHECKS_POSTPONED_MAX):
        noted.garbage.collect_if_due()
    assert noted.take() == []
    noted.garbage.collect_if_due()
    assert noted.take() == ["collect", "freeze"]


def test_once_in_a_while_everything_is_looked_at(noted: Noted) -> None:
    noted.garbage.begin()
    noted.passes = 0
    noted.take()
    for _ in range(FULL_COLLECTION_EVERY):
        noted.garbage.collect_if_due()
    assert noted.take() == ["unfreeze", "collect", "freeze"]
