"""Deadlines of members: found in the order of time, and gone with the members."""

import gc
from weakref import WeakSet

from millstream.groups.deadlines import Deadlines
from millstream.model.ids import MemberId

FAR_MS = 30 * 60_000


class Name(str):
    """A text whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_members_that_are_gone_are_not_kept_until_their_time_would_have_come() -> None:
    """Consumers that join and leave every second, with sessions of half an hour."""
    deadlines = Deadlines[MemberId]()
    names: WeakSet[Name] = WeakSet()
    for number in range(2_000):
        name = Name(f"member-{number}")
        names.add(name)
        member_id = MemberId(name)
        deadlines.set(member_id, FAR_MS + number)
        if number % 100:
            deadlines.cancel(member_id)
    del name, member_id
    gc.collect()
    assert len(names) < 20 * 4 + 100
    assert deadlines.take_all_due(10 * FAR_MS) == [
        f"member-{number}" for number in range(0, 2_000, 100)
    ]


def test_a_deadline_that_moves_to_and_fro_takes_no_more_room() -> None:
    deadlines = Deadlines[MemberId]()
    member_id = MemberId(Name("member"))
    for number in range(1_000):
        deadlines.set(member_id, FAR_MS + (number % 2))
    held = sum(1 for one in gc.get_referrers(member_id) if isinstance(one, tuple))
    assert held < 10
    assert deadlines.next_ms() == FAR_MS + 1
