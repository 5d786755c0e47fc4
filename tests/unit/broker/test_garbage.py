"""Modules are taken out of the collector's way, a few times and no more."""

import gc
import sys
import types
from collections.abc import Iterator

import pytest

from kits.broker.garbage_kit import as_never_frozen
from millstream.runtime.garbage import FREEZES_MAX, freeze_modules


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from as_never_frozen(monkeypatch)


def test_what_is_there_is_not_looked_at_again() -> None:
    kept = [[] for _ in range(1000)]  # type: list[list[object]]
    freeze_modules()
    assert gc.get_freeze_count() > len(kept)
    assert not any(one is kept for one in gc.get_objects())


def test_it_does_nothing_until_modules_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_modules()
    count = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]  # type: list[list[object]]
    freeze_modules()
    assert gc.get_freeze_count() <= count
    monkeypatch.setitem(sys.modules, "one_more", types.ModuleType("one_more"))
    freeze_modules()
    assert gc.get_freeze_count() >= count + len(kept)


def test_garbage_is_collected_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    class Ring:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            gone.append("gone")

    Ring()
    freeze_modules()
    assert gone == ["gone"]


def test_a_process_that_loads_for_ever_is_not_frozen_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(FREEZES_MAX + 3):
        name = f"loaded_{number}"
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        freeze_modules()
    count = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]  # type: list[list[object]]
    freeze_modules()
    assert gc.get_freeze_count() <= count
    assert len(kept) == 1000
