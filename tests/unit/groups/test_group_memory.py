"""What members keep in memory: counted for each group and for all, refused beyond the limits."""

from random import Random
from typing import Any

import pytest

from kits.groups.shard_kit import Shell
from kits.groups.shard_requests import consumer_heartbeat, join, leave, sync
from millstream.groups import memory as memory_module
from millstream.groups.errors import GroupFull
from millstream.groups.memory import MEMBER_BYTES, GroupMemory
from millstream.model.limits import GROUP_MEMBERS_BYTES_MAX, MIB
from millstream.shards.errors import CoordinatorNotAvailable
from millstream.wire.messages.join_group import JoinGroupRequest

SMALL_LIMIT = 100_000


def large_join(size: int, group: str = "g", member: str = "", **more: Any) -> JoinGroupRequest:
    request = join(group, member, **more)
    request.protocols[0].metadata = bytes(size)
    return request


def test_a_member_with_more_metadata_than_a_group_may_have_is_refused() -> None:
    shell = Shell()
    answer = shell.answer("join_group", large_join(40 * MIB), version=2)
    assert isinstance(answer, GroupFull)
    assert shell.memory.size_bytes == 0


def test_the_metadata_of_all_members_of_a_group_counts() -> None:
    shell = Shell()
    size = GROUP_MEMBERS_BYTES_MAX // 2 - 2 * MEMBER_BYTES
    waiting = shell.submit("join_group", large_join(size), version=2)
    shell.submit("join_group", large_join(size), version=2)
    assert isinstance(shell.answer("join_group", large_join(size), version=2), GroupFull)
    shell.pass_time(60_000)
    member_id = shell.answers.pop(waiting).member_id
    again = shell.submit("join_group", large_join(size, member=member_id), version=2)
    assert not isinstance(shell.answers.get(again), GroupFull), "it does not count twice"


def test_beyond_the_limit_of_all_groups_no_member_is_added_and_others_go_on() -> None:
    shell = Shell(memory=GroupMemory(lambda: SMALL_LIMIT))
    token = shell.submit("join_group", large_join(60_000, "a"), version=2)
    shell.pass_time(10)
    first = shell.answers.pop(token)
    refused = shell.answer("join_group", large_join(60_000, "b"), version=2)
    assert isinstance(refused, CoordinatorNotAvailable)
    shell.answer("sync_group", sync("a", first.member_id, first.generation_id), version=0)
    again = shell.submit("join_group", large_join(60_000, "a", first.member_id), version=2)
    shell.pass_time(10)
    assert shell.answers.pop(again).error_code == 0
    shell.answer("leave_group", leave("a", first.member_id), version=3)
    assert shell.memory.size_bytes == 0
    waiting = shell.submit("join_group", large_join(60_000, "b"), version=2)
    shell.pass_time(10)
    assert shell.answers.pop(waiting).error_code == 0


def test_ids_that_were_given_out_count_until_their_session_is_over() -> None:
    shell = Shell(memory=GroupMemory(lambda: 5 * MEMBER_BYTES))
    answers = [shell.answer("join_group", join(f"g{number}"), version=4) for number in range(9)]
    assert isinstance(answers[-1], CoordinatorNotAvailable)
    shell.pass_time(20_000)
    assert shell.memory.size_bytes == 0


def test_subscriptions_of_the_consumer_protocol_count_once_where_they_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "GROUP_MEMBERS_BYTES_MAX", SMALL_LIMIT)
    shell = Shell()
    names = [f"topic-{number}" for number in range(600)]

    def beat(member: str, topics: list[str]) -> Any:
        request = consumer_heartbeat("g", member, 0, topics=topics, owned=(), rebalance_ms=1_000)
        return shell.answer("consumer_group_heartbeat", request, version=1)

    for number in range(3):
        beat(f"m{number}", names)
    same = shell.memory.size_bytes
    assert same < SMALL_LIMIT
    assert isinstance(beat("m4", [f"other-{number}" for number in range(600)]), GroupFull)
    assert shell.memory.size_bytes == same
    shell.pass_time(300_000)
    assert shell.memory.size_bytes == 0


def test_the_sum_is_that_of_the_groups_through_failovers_and_the_end() -> None:
    """Seeds 0-4: whatever happens to members, nothing is counted that is not there."""
    for seed in range(5):
        random, shell = Random(seed), Shell()
        for number in range(150):
            group, member = f"g{random.randrange(4)}", f"m{random.randrange(6)}"
            action = random.randrange(4)
            if action == 0:
                shell.submit("join_group", large_join(random.randrange(5_000), group), version=2)
            elif action == 1:
                names = [f"t{one}" for one in range(random.randrange(40))]
                request = consumer_heartbeat(
                    group, member, 0, topics=names, owned=(), rebalance_ms=1_000
                )
                shell.submit("consumer_group_heartbeat", request, version=1)
            elif action == 2:
                shell.pass_time(random.randrange(9_000))
            elif number % 10 == 0:
                shell = shell.fail_over()
        shell.pass_time(600_000)
        assert shell.memory.size_bytes == 0, seed
        shell.submit("join_group", join("last"), version=2)
        assert shell.memory.size_bytes > 0
        shell.shard.unload()
        assert shell.memory.size_bytes == 0
