"""For tests of what is taken out of the collector's way."""

import gc
from collections.abc import Iterator

import pytest

from millstream.runtime import garbage


def as_never_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has frozen nothing yet; what the test froze is looked at again."""
    monkeypatch.setattr(garbage, "_frozen_modules", [])
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()
