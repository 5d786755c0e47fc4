"""The table of groups: which of them is called when."""

import pytest

from millstream.groups.memory import GroupMemory
from millstream.groups.table import GroupTable
from millstream.model.ids import GroupId

A, B, C = GroupId("a"), GroupId("b"), GroupId("c")


class Group:
    """Wants to be called at one time."""

    def __init__(self, deadline_ms: int | None) -> None:
        self.deadline_ms = deadline_ms
        self.size_bytes = 0

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms


def table_of(**deadlines_ms: int) -> GroupTable[Group]:
    table: GroupTable[Group] = GroupTable()
    for name, deadline_ms in deadlines_ms.items():
        table[GroupId(name)] = Group(deadline_ms)
        table.arm(GroupId(name))
    return table


def test_groups_come_in_the_order_of_their_deadlines_and_are_armed_again() -> None:
    table = table_of(a=3, b=1, c=9)
    come = []
    for group in table.due(5):
        come.append(group.deadline_ms)
        group.deadline_ms = 7
    assert come == [1, 3]
    assert table.next_deadline_ms() == 7


def test_a_group_that_fails_takes_no_deadline_from_those_behind_it() -> None:
    table = table_of(a=1, b=2, c=3)
    del table[B]

    def call_all() -> None:
        for _ in table.due(5):
            raise KeyError("a fault")

    with pytest.raises(KeyError):
        call_all()
    assert table.next_deadline_ms() == 1
    table[A].deadline_ms = 6
    assert [group is table[C] for group in table.due(5)] == [True]


def test_the_sizes_of_groups_are_in_the_sum_of_all_until_they_are_gone() -> None:
    memory = GroupMemory()
    memory.size_bytes = 1_000  # of another shard
    table: GroupTable[Group] = GroupTable(memory)
    for name, size in ((A, 5), (B, 7)):
        table[name] = Group(None)
        table[name].size_bytes = size
        table.arm(name)
    assert memory.size_bytes == 1_012
    table[A].size_bytes = 1
    table.arm(A)
    assert memory.size_bytes == 1_008
    del table[A]
    table.arm(A)
    assert memory.size_bytes == 1_007
    table.clear()
    assert memory.size_bytes == 1_000
