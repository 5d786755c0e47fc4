"""Next-generation groups in a shard, and groups that change between the protocols."""

from typing import Any

import pytest

from kits.groups.shard_clients import ClassicClient, ConsumerClient, code_of
from kits.groups.shard_kit import LogFull, Shell
from kits.groups.shard_requests import (
    commit,
    consumer_heartbeat,
    fetch,
    fetched,
    heartbeat,
    join,
    offset_delete,
    subscription,
    sync,
)
from kits.groups.shard_topics import FakeTopics
from millstream.groups.errors import GroupNotEmpty, GroupNotFound, InvalidGroupId, StaleMemberEpoch
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey, ConsumerGroupKey
from millstream.groups.settings import MigrationPolicy
from millstream.testing.protocol_members.settings import WEEK_MS, MutableGroupSettings
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequestProtocol
from millstream.wire.messages.list_groups import ListGroupsRequest

T0, T1 = ("t", 0), ("t", 1)
SUBSCRIPTION = subscription(["t"])
Client = ClassicClient | ConsumerClient


def new_shell(**settings: Any) -> Shell:
    given = {"initial_rebalance_delay_ms": 0, "consumer_assignment_interval_ms": 0} | settings
    return Shell(settings=MutableGroupSettings(**given), topics=FakeTopics(t=2))


def run(shell: Shell, *clients: Client, rounds: int = 30) -> None:
    """Everybody does what clients do; nothing is owned twice at any time (I-27)."""
    for _ in range(rounds):
        for client in clients:
            client.poll()
            if client.is_waiting:
                continue
            if isinstance(client, ConsumerClient):
                client.heartbeat()
            elif not client.is_stable:
                client.join()
            else:
                client.heartbeat()
            owned = [partition for one in clients for partition in named(shell, one)]
            assert len(owned) == len(set(owned)), owned
        shell.pass_time(500)


def named(shell: Shell, client: Client) -> set[tuple[str, int]]:
    if isinstance(client, ClassicClient):
        return client.owned
    found = {(shell.topics.by_id(topic_id), n) for topic_id, n in client.owned}
    return {(facts.name, n) for facts, n in found if facts is not None}


def listed(shell: Shell, group: str = "g") -> tuple[str, str] | None:
    groups = shell.answer("list_groups", ListGroupsRequest())
    found = [(one.group_type, one.group_state) for one in groups if one.group_id == group]
    return found[0] if found else None


def committed(shell: Shell) -> dict[tuple[str, int], int]:
    return fetched(shell.answer("offset_fetch", fetch("g"), is_stable=False))


def test_members_of_the_new_protocol_share_commit_and_fetch_in_their_epoch() -> None:
    shell = new_shell()
    one, two = ConsumerClient(shell, "g", "one"), ConsumerClient(shell, "g", "two")
    run(shell, one, two)
    assert named(shell, one) | named(shell, two) == {T0, T1}
    assert listed(shell) == ("consumer", "Stable")
    shell.answers.pop(one.commit({T0: 5}))
    mine = fetch("g", [T0], member="one", epoch=one.epoch)
    assert fetched(shell.answer("offset_fetch", mine, is_stable=True)) == {T0: 5}
    old = fetch("g", [T0], member="one", epoch=one.epoch - 1)
    assert isinstance(shell.answer("offset_fetch", old, is_stable=True), StaleMemberEpoch)
    not_mine = named(shell, two).pop()
    stale = commit("g", {not_mine: 1}, member="one", generation=one.epoch - 1)
    assert isinstance(shell.answer("offset_commit", stale, version=9), StaleMemberEpoch)
    assert shell.shard.counts.consumer_rebalances >= 2


def test_a_group_of_the_new_protocol_is_deleted_when_it_is_empty() -> None:
    shell = new_shell()
    one = ConsumerClient(shell, "g", "one")
    run(shell, one)
    shell.answers.pop(one.commit({T0: 5}))
    assert isinstance(shell.answer("delete_group", "g"), GroupNotEmpty)
    refused = shell.answer("offset_delete", offset_delete("g", [T0])).topics[0].partitions[0]
    assert refused.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    one.leave()
    assert listed(shell) == ("consumer", "Empty")
    assert shell.answer("delete_group", "g").error_code == ErrorCode.NONE
    for each in (shell, shell.fail_over()):
        assert listed(each) is None
        assert committed(each) == {}


def test_offsets_of_an_empty_group_of_the_new_protocol_expire_after_their_commit() -> None:
    shell = new_shell()
    one = ConsumerClient(shell, "g", "one")
    run(shell, one)
    shell.answers.pop(one.commit({T0: 5, ("old", 0): 6}))
    shell.wall_ms += WEEK_MS
    shell.expire()
    assert committed(shell) == {T0: 5}
    one.leave()
    shell.expire()
    assert committed(shell) == {}
    assert listed(shell) is None
    assert listed(shell.fail_over()) is None


def test_a_failover_keeps_epochs_and_assignments() -> None:
    shell = new_shell()
    one, two = ConsumerClient(shell, "g", "one"), ConsumerClient(shell, "g", "two")
    run(shell, one, two)
    before = shell.answer("consumer_group_describe", "g")
    after = shell.fail_over()
    assert after.answer("consumer_group_describe", "g") == before
    for client in (one, two):
        client.moved(after)
        assert client.heartbeat() == ErrorCode.NONE


def test_groups_are_found_by_their_own_protocol_only() -> None:
    shell = new_shell()
    shell.answer("offset_commit", commit("classic", {T0: 1}))
    run(shell, ConsumerClient(shell, "new", "one"))
    described = shell.answer("describe_group", "new", version=6)
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.error_message == "Group new is not a classic group."
    described = shell.answer("consumer_group_describe", "classic")
    assert described.error_message == "Group classic is not a consumer group."
    described = shell.answer("consumer_group_describe", "none")
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(shell.answer("consumer_group_describe", ""), InvalidGroupId)
    late = consumer_heartbeat("none", "m", 3, owned=())
    assert isinstance(shell.answer("consumer_group_heartbeat", late, version=1), GroupNotFound)


def test_a_group_whose_first_write_is_refused_is_not_there() -> None:
    shell = new_shell()
    shell.is_refusing = True
    one = ConsumerClient(shell, "g", "one")
    one.heartbeat()
    assert listed(shell) is None
    shell.is_refusing = False
    run(shell, one)
    assert named(shell, one) == {T0, T1}


def test_an_empty_group_becomes_one_of_the_other_protocol_and_keeps_its_offsets() -> None:
    shell = new_shell(migration_policy=MigrationPolicy.DISABLED)
    shell.answer("offset_commit", commit("g", {T0: 5}))
    new = ConsumerClient(shell, "g", "new")
    run(shell, new)
    assert listed(shell) == ("consumer", "Stable")
    new.leave()
    old = ClassicClient(shell, "g", "old")
    run(shell, old)
    assert listed(shell) == ("classic", "Stable")
    assert old.owned == {T0, T1}
    for each in (shell, shell.fail_over()):
        assert listed(each) == ("classic", "Stable")
        assert committed(each) == {T0: 5}
    old.leave()
    run(shell, new)
    assert listed(shell) == ("consumer", "Stable")
    assert committed(shell) == {T0: 5}


def test_a_classic_member_cannot_take_over_an_empty_group_that_the_log_does_not_give_up() -> None:
    shell = new_shell()
    new, old = ConsumerClient(shell, "g", "new"), ClassicClient(shell, "g", "old")
    run(shell, new)
    new.leave()
    shell.is_refusing = True
    old.join()
    assert old.last_error == LogFull.__name__
    assert listed(shell) == ("consumer", "Empty")
    shell.is_refusing = False
    run(shell, old)
    assert listed(shell) == ("classic", "Stable")


def test_an_upgrade_and_the_way_back_keep_offsets_and_never_own_twice() -> None:
    """I-27. Consumers are restarted one after the other, there and back."""
    shell = new_shell()
    old = [ClassicClient(shell, "g", f"old-{n}") for n in range(2)]
    run(shell, *old)
    shell.answers.pop(old[0].commit({T0: 5, T1: 6}))
    new = [ConsumerClient(shell, "g", f"new-{n}") for n in range(2)]
    run(shell, *old, new[0])
    assert listed(shell) == ("consumer", "Stable")
    old[0].leave()
    run(shell, old[1], *new)
    old[1].leave()
    run(shell, *new)
    assert set().union(*(named(shell, one) for one in new)) == {T0, T1}
    assert committed(shell) == committed(shell.fail_over()) == {T0: 5, T1: 6}
    run(shell, *new, old[0])
    new[0].leave()
    run(shell, new[1], *old)
    assert listed(shell) == ("consumer", "Stable")
    new[1].leave()
    run(shell, *old)
    assert listed(shell) == ("classic", "Stable")
    assert old[0].owned | old[1].owned == {T0, T1}
    assert committed(shell) == committed(shell.fail_over()) == {T0: 5, T1: 6}
    entries = [logged.what for logged in shell.log if isinstance(logged.what, Entry)]
    kinds = {type(one.key) for one in entries if one.value is None}
    assert {ClassicGroupKey, ConsumerGroupKey} <= kinds


def test_a_group_that_changes_twice_does_not_give_away_what_a_member_still_reads() -> None:
    """I-27. The old member has heard of neither change when the new one comes again."""
    shell = new_shell()
    old, new = ClassicClient(shell, "g", "old"), ConsumerClient(shell, "g", "new")
    run(shell, old)
    assert old.owned == {T0, T1}
    new.heartbeat()
    new.leave()
    assert listed(shell) == ("classic", "PreparingRebalance")
    new.heartbeat()
    assert named(shell, new) == set()
    run(shell, old, new)
    assert named(shell, old) | named(shell, new) == {T0, T1}


def test_an_upgrade_that_the_log_refuses_leaves_the_classic_group_as_it_was() -> None:
    shell = new_shell()
    old = ClassicClient(shell, "g", "old")
    run(shell, old)
    shell.is_refusing = True
    ConsumerClient(shell, "g", "new").heartbeat()
    shell.is_refusing = False
    assert listed(shell) == ("classic", "Stable")
    assert old.heartbeat() == ErrorCode.NONE
    shell.answers.pop(old.commit({T0: 5}))
    assert committed(shell) == {T0: 5}


def test_members_that_wait_during_an_upgrade_are_told_to_join_again() -> None:
    """While a rebalance of the classic group is under way."""
    shell = new_shell(initial_rebalance_delay_ms=3_000)
    old = ClassicClient(shell, "g", "old")
    old.join()
    assert old.is_waiting
    new = ConsumerClient(shell, "g", "new")
    new.heartbeat()
    old.poll()
    assert old.last_error == ErrorCode.REBALANCE_IN_PROGRESS
    run(shell, old, new)
    assert listed(shell) == ("consumer", "Stable")
    assert named(shell, old) | named(shell, new) == {T0, T1}


def test_members_that_have_not_synced_during_an_upgrade_go_on_in_the_new_group() -> None:
    """A new member comes between the answer to JoinGroup and the leader's SyncGroup."""
    shell = new_shell()
    token = shell.submit("join_group", join("g"), version=3)
    shell.pass_time(0)
    joined = shell.answers.pop(token)
    assert listed(shell) == ("classic", "CompletingRebalance")
    new = ConsumerClient(shell, "g", "new")
    new.heartbeat()
    assert listed(shell) != ("classic", "CompletingRebalance")
    member, generation = joined.member_id, joined.generation_id
    late = shell.answer("sync_group", sync("g", member, generation), version=5)
    assert code_of(late) == ErrorCode.REBALANCE_IN_PROGRESS
    beat = shell.answer("heartbeat", heartbeat("g", member, generation), version=4)
    assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    old = ClassicClient(shell, "g", "old")
    old.member = member
    run(shell, old, new)
    assert listed(shell) == ("consumer", "Stable")
    assert named(shell, old) | named(shell, new) == {T0, T1}


def test_an_upgrade_after_a_rebalance_that_began_twice_gives_away_nothing_that_is_read() -> None:
    """I-27. A cooperative member reads what it has until it is told otherwise."""
    shell = new_shell()
    reader = ClassicClient(shell, "g", "reader")
    run(shell, reader)
    assert reader.owned == {T0, T1}
    waiting = [shell.submit("join_group", join("g"), version=3)]
    again = shell.submit("join_group", join("g", reader.member), version=3)
    assert listed(shell) == ("classic", "CompletingRebalance")
    generation = shell.answers.pop(again).generation_id
    waiting.append(shell.submit("join_group", join("g"), version=3))
    assert listed(shell) == ("classic", "PreparingRebalance")
    new = ConsumerClient(shell, "g", "a first one")
    new.heartbeat()
    assert named(shell, new) == set()
    beat = shell.answer("heartbeat", heartbeat("g", reader.member, generation), version=4)
    assert beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("raw", [b"", b"\x80\0"])
def test_the_way_back_is_open_whatever_a_member_says_of_an_assignor_it_does_not_use(
    raw: bytes,
) -> None:
    """The second assignor's subscription is read for the first time when the last one leaves."""
    shell = new_shell()
    new = ConsumerClient(shell, "g", "new")
    run(shell, new)
    request = join("g")
    request.protocols.append(JoinGroupRequestProtocol(name="a better one", metadata=raw))
    shell.answers.pop(shell.submit("join_group", request, version=3))
    other = join("g")
    other.protocols.insert(0, JoinGroupRequestProtocol(name="a better one", metadata=SUBSCRIPTION))
    shell.answers.pop(shell.submit("join_group", other, version=3))
    assert listed(shell) != ("classic", "PreparingRebalance")
    new.leave()
    assert listed(shell) == ("classic", "PreparingRebalance")


def test_the_policy_keeps_a_group_with_members_as_it_is() -> None:
    shell = new_shell(migration_policy=MigrationPolicy.DOWNGRADE)
    old, new = ClassicClient(shell, "g", "old"), ConsumerClient(shell, "g", "new")
    run(shell, old)
    new.heartbeat()
    assert new.last_error == ErrorCode.GROUP_ID_NOT_FOUND
    assert listed(shell) == ("classic", "Stable")
    shell.settings.migration_policy = MigrationPolicy.UPGRADE
    run(shell, old, new)
    assert listed(shell) == ("consumer", "Stable")
    new.leave()
    run(shell, old)
    assert listed(shell) == ("consumer", "Stable")


def test_a_dead_member_is_replaced_whichever_protocol_it_speaks() -> None:
    """I-30."""
    shell = new_shell()
    old, new = ClassicClient(shell, "g", "old"), ConsumerClient(shell, "g", "new")
    run(shell, old, new)
    old.crash()
    run(shell, new, rounds=60)
    assert named(shell, new) == {T0, T1}
    run(shell, old, new)
    new.crash()
    run(shell, old, rounds=150)
    assert old.owned == {T0, T1}
    assert listed(shell) == ("classic", "Stable")
