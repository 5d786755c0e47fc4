"""Classic groups in a shard: membership, commits, deletion, expiry, failover."""

from typing import Any

from kits.groups.shard_clients import ClassicClient
from kits.groups.shard_kit import LogFull, Shell
from kits.groups.shard_requests import commit, fetch, fetched, join, offset_delete, sync
from kits.groups.shard_topics import FakeTopics
from millstream.groups.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InvalidGroupId,
    UnknownMember,
)
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey, OffsetKey
from millstream.model.ids import GroupId
from millstream.testing.protocol_members.settings import WEEK_MS, MutableGroupSettings
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_groups import ListGroupsRequest

T0, T1 = ("t", 0), ("t", 1)


def stable_pair(shell: Shell, group: str = "g") -> tuple[ClassicClient, ClassicClient]:
    """Two members that have joined, with one partition each."""
    one, two = ClassicClient(shell, group, "one"), ClassicClient(shell, group, "two")
    for client in (one, two):
        client.join()
    shell.pass_time(1)
    settle(shell, one, two)
    assert one.is_stable
    assert two.is_stable
    return one, two


def settle(shell: Shell, *clients: ClassicClient) -> None:
    """Until all are stable, as long as that is possible at all."""
    for _ in range(50):
        for client in clients:
            client.poll()
            if client.is_waiting:
                continue
            if not client.is_stable or client.heartbeat() != ErrorCode.NONE:
                client.join()
        shell.pass_time(100)
        for client in clients:
            client.poll()
        if all(client.is_stable for client in clients):
            return


def new_shell(**settings: Any) -> Shell:
    given = {"initial_rebalance_delay_ms": 0} | settings
    return Shell(settings=MutableGroupSettings(**given), topics=FakeTopics(t=2))


def committed(shell: Shell, group: str = "g") -> dict[tuple[str, int], int]:
    return fetched(shell.answer("offset_fetch", fetch(group), is_stable=False))


def state_of(shell: Shell, group: str = "g") -> str | None:
    listed = shell.answer("list_groups", ListGroupsRequest())
    return next((one.group_state for one in listed if one.group_id == group), None)


def test_members_share_the_partitions_and_commit() -> None:
    """I-27."""
    shell = new_shell()
    one, two = stable_pair(shell)
    assert one.owned | two.owned == {T0, T1}
    assert not one.owned & two.owned
    token = one.commit({T0: 5})
    assert shell.answers.pop(token).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert committed(shell) == {T0: 5}
    assert state_of(shell) == "Stable"
    assert shell.shard.counts.completed_rebalances >= 1


def test_a_commit_of_an_old_generation_is_refused() -> None:
    """I-28. Its partitions may have another owner by now."""
    shell = new_shell()
    one, two = stable_pair(shell)
    old = commit("g", {T0: 4}, member=one.member, generation=one.generation)
    two.leave()
    settle(shell, one)
    shell.answers.pop(one.commit({T0: 7, T1: 8}))
    assert isinstance(shell.answer("offset_commit", old, version=9), IllegalGeneration)
    stranger = commit("g", {T0: 4}, member="stranger", generation=one.generation)
    assert isinstance(shell.answer("offset_commit", stranger, version=9), UnknownMember)
    nobody = commit("g", {T0: 4})
    assert isinstance(shell.answer("offset_commit", nobody, version=9), UnknownMember)
    assert committed(shell) == {T0: 7, T1: 8}


def test_a_member_that_is_silent_is_out_and_one_that_commits_is_not() -> None:
    """I-30."""
    shell = new_shell()
    one, two = stable_pair(shell)
    for _ in range(12):
        shell.pass_time(1_000)
        shell.answers.pop(one.commit({T0: 1}))
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(shell, one)
    assert one.owned == {T0, T1}


def test_a_group_with_members_is_not_deleted_and_an_empty_one_is_with_its_offsets() -> None:
    shell = new_shell()
    one, two = stable_pair(shell)
    shell.answers.pop(one.commit({T0: 5, T1: 6}))
    assert isinstance(shell.answer("delete_group", "g"), GroupNotEmpty)
    one.leave()
    two.leave()
    shell.pass_time(60_000)
    assert state_of(shell) == "Empty"
    assert shell.answer("delete_group", "g").error_code == ErrorCode.NONE
    for each in (shell, shell.fail_over()):
        assert state_of(each) is None
        assert committed(each) == {}
    assert isinstance(shell.answer("delete_group", "g"), GroupNotFound)
    entries = [logged.what for logged in shell.log if isinstance(logged.what, Entry)]
    gone = {one.key for one in entries if one.value is None}
    group = GroupId("g")
    assert gone == {OffsetKey(group, "t", 0), OffsetKey(group, "t", 1), ClassicGroupKey(group)}


def test_a_group_with_more_offsets_than_a_batch_holds_is_deleted_step_by_step() -> None:
    """The group goes with the last batch, so a deletion that is broken off can be repeated."""
    shell = new_shell()
    for first in range(0, 2_500, 500):
        shell.answer("offset_commit", commit("g", {("t", first + n): n for n in range(500)}))
    sizes: list[int] = []

    def look(write: Any) -> None:
        sizes.append(len(write.entries))
        shell.is_refusing = len(sizes) == 2

    shell.on_append = look
    assert isinstance(shell.answer("delete_group", "g"), LogFull)
    shell.is_refusing = False
    assert (state_of(shell), len(committed(shell))) == ("Empty", 500)
    assert len(committed(shell.fail_over())) == 500
    assert shell.answer("delete_group", "g").error_code == ErrorCode.NONE
    assert sizes == [1_000, 1_000, 501]
    assert state_of(shell) is None
    assert state_of(shell.fail_over()) is None


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    shell = new_shell()
    one, _ = stable_pair(shell)
    shell.answers.pop(one.commit({T0: 5, ("old", 0): 6}))
    answer = shell.answer("offset_delete", offset_delete("g", [T0, ("old", 0)]))
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "old": ErrorCode.NONE}
    assert committed(shell) == {T0: 5}


def test_offsets_expire_when_the_group_has_been_empty_for_long_enough() -> None:
    shell = new_shell()
    one, two = stable_pair(shell)
    shell.answers.pop(one.commit({T0: 5, ("old", 0): 6}))
    for _ in range(200):
        shell.pass_time(9_000)
        one.heartbeat(), two.heartbeat()
    shell.wall_ms += WEEK_MS
    shell.expire()
    assert committed(shell) == {T0: 5}, "of the topic that nobody subscribes to, and of no other"
    one.leave()
    two.leave()
    shell.pass_time(60_000)
    shell.pass_time(WEEK_MS - 120_000)
    shell.expire()
    assert committed(shell) == {T0: 5}
    shell.pass_time(120_000)
    shell.expire()
    assert committed(shell) == committed(shell.fail_over()) == {}
    assert state_of(shell) is None
    assert shell.shard.counts.offset_expirations == 2
    assert shell.shard.counts.expired_groups == 1


def test_offsets_without_members_expire_after_their_commit() -> None:
    shell = new_shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.pass_time(WEEK_MS // 2)
    shell.answer("offset_commit", commit("g", {T1: 5}))
    shell.pass_time(WEEK_MS // 2)
    shell.expire()
    assert committed(shell) == {T1: 5}
    shell.pass_time(WEEK_MS // 2)
    shell.expire()
    assert state_of(shell) is None
    assert state_of(shell.fail_over()) is None


def test_an_old_client_says_itself_how_long_its_offsets_are_kept() -> None:
    shell = new_shell()
    request = commit("g", {T0: 5}, retention_ms=60_000)
    shell.answer("offset_commit", request, version=4)
    shell.pass_time(59_999)
    shell.expire()
    assert committed(shell) == {T0: 5}
    shell.pass_time(1)
    shell.expire()
    assert committed(shell) == {}


def test_a_commit_on_its_way_keeps_an_offset_from_expiring() -> None:
    """I-29. The tombstone would come after it."""
    shell = new_shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.pass_time(WEEK_MS)
    shell.is_holding = True
    token = shell.submit("offset_commit", commit("g", {T0: 9}))
    shell.expire()
    shell.is_holding = False
    shell.advance()
    assert token in shell.answers
    assert committed(shell) == {T0: 9}


def test_a_failover_keeps_members_generation_and_offsets() -> None:
    """What was answered holds; sessions begin anew."""
    shell = new_shell()
    one, two = stable_pair(shell)
    shell.answers.pop(one.commit({T0: 5}))
    after = shell.fail_over()
    for client in (one, two):
        client.shell = after
        assert client.heartbeat() == ErrorCode.NONE
    assert committed(after) == {T0: 5}
    one.commit({T0: 6})
    assert committed(after) == {T0: 6}
    before, again = (each.answer("describe_group", "g") for each in (shell, after))
    assert before == again


def test_an_assignment_that_the_log_refuses_is_given_to_nobody() -> None:
    """I-27."""
    shell = new_shell()
    one, two = ClassicClient(shell, "g", "one"), ClassicClient(shell, "g", "two")
    one.join()
    two.join()
    shell.is_refusing = True
    shell.pass_time(1)
    one.poll()
    two.poll()
    assert not one.is_stable
    assert not two.is_stable
    shell.is_refusing = False
    settle(shell, one, two)
    assert one.owned | two.owned == {T0, T1}


def test_nobody_has_an_assignment_before_the_high_watermark_has_passed_it() -> None:
    """I-27. The next coordinator must know what the members work by."""
    shell = new_shell()
    shell.is_holding = True
    one = ClassicClient(shell, "g", "one")
    one.join()
    shell.pass_time(1)
    one.poll()
    assert one.is_waiting
    assert not one.is_stable
    shell.advance()
    one.poll()
    assert one.owned == {T0, T1}


def test_whoever_waits_is_among_the_tokens_of_an_unload() -> None:
    shell = new_shell(initial_rebalance_delay_ms=3_000)
    one = ClassicClient(shell, "g", "one")
    one.join()
    assert one._waiting is not None
    assert shell.shard.unload() == [one._waiting[1]]


def test_groups_without_a_name_and_members_without_a_group() -> None:
    shell = new_shell()
    assert isinstance(shell.answer("join_group", join("")), InvalidGroupId)
    assert isinstance(shell.answer("join_group", join("g", "m")), UnknownMember)
    assert isinstance(shell.answer("sync_group", sync("g", "m", 1)), UnknownMember)
    assert state_of(shell) is None


def test_a_member_that_is_refused_leaves_no_group_behind() -> None:
    shell = new_shell()
    answer = shell.answer("join_group", join("g", session_ms=1))
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert state_of(shell) is None
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.answer("join_group", join("g", session_ms=1))
    assert state_of(shell) == "Empty"


def test_lists_are_filtered_by_state_and_type_in_any_case() -> None:
    shell = new_shell()
    stable_pair(shell, "busy")
    shell.answer("offset_commit", commit("idle", {T0: 5}))

    def found(**filters: Any) -> list[tuple[str, str, str]]:
        listed = shell.answer("list_groups", ListGroupsRequest(**filters))
        return sorted((one.group_id, one.protocol_type, one.group_type) for one in listed)

    busy, idle = ("busy", "consumer", "classic"), ("idle", "", "classic")
    assert found() == [busy, idle]
    assert found(states_filter=["EMPTY"]) == [idle]
    assert found(states_filter=["stable", "empty"], types_filter=["Classic"]) == [busy, idle]
    assert found(types_filter=["consumer"]) == []
    assert found(types_filter=["nonsense"]) == []


def test_a_group_that_is_not_there_is_dead_or_an_error_by_version() -> None:
    shell = new_shell()
    old = shell.answer("describe_group", "g", version=5)
    assert (old.group_state, old.error_code) == ("Dead", ErrorCode.NONE)
    new = shell.answer("describe_group", "g", version=6)
    assert (new.group_state, new.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert new.error_message == "Group g not found."


def test_one_deadline_of_thousands_of_groups() -> None:
    shell = new_shell()
    clients = [ClassicClient(shell, f"g{n}", "one") for n in range(300)]
    for client in clients:
        client.join()
    shell.pass_time(1)
    for client in clients:
        client.poll()
    assert all(client.is_stable for client in clients)
    shell.pass_time(5_000)
    for client in clients[100:]:
        client.heartbeat()
    shell.pass_time(5_500)
    assert sum(state_of(shell, client.group) == "Stable" for client in clients) == 200
    shell.pass_time(60_000)
    assert shell.shard.groups_by_state() == {("classic", "Empty"): 300}
    assert shell.shard.next_deadline_ms() is None
