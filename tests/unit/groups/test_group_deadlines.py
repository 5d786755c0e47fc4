"""Deadlines of members: found in the order of time, and gone with the members."""

import gc
from weakref import WeakSet

import pytest

from millstream.groups.classic.deadlines import Deadlines as ClassicDeadlines
from millstream.groups.consumer.deadlines import Deadlines as ConsumerDeadlines
from millstream.model.ids import MemberId

FAR_MS = 30 * 60_000


class Name(str):
    """A text whose end can be seen."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_members_that_are_gone_are_not_kept_until_their_time_would_have_come(kind: str) -> None:
    """Consumers that come and go every second, with sessions of half an hour."""
    classic, consumer = ClassicDeadlines(), ConsumerDeadlines[MemberId]()
    names: WeakSet[Name] = WeakSet()
    for number in range(2_000):
        name = Name(f"member-{number}")
        names.add(name)
        member_id = MemberId(name)
        if kind == "classic":
            classic.put(member_id, FAR_MS + number)
            if number % 100:
                classic.drop(member_id)
        else:
            consumer.set(member_id, FAR_MS + number)
            if number % 100:
                consumer.cancel(member_id)
    del name, member_id
    gc.collect()
    assert len(names) < 20 * 4 + 100
    stayed = []
    while (found := classic.take_due(10 * FAR_MS)) is not None:
        stayed.append(found)
    stayed += consumer.take_due(10 * FAR_MS)
    assert stayed == [f"member-{number}" for number in range(0, 2_000, 100)]
