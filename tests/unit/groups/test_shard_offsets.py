"""Commits and what is seen of them, in groups of each kind and of none."""

from typing import Any

import pytest

from kits.groups.shard_kit import LogFull, Shell
from kits.groups.shard_requests import commit, fetch, fetched, offset_delete, txn_commit
from millstream.groups.errors import GroupNotFound, IllegalGeneration, InvalidGroupId
from millstream.groups.records.entries import Entry, Producer, decode_batches, encode
from millstream.model.ids import ProducerEpoch, ProducerId
from millstream.testing.protocol_members.settings import WEEK_MS, MutableGroupSettings
from millstream.wire.errors import ErrorCode

T0, T1 = ("t", 0), ("t", 1)
PRODUCER = Producer(ProducerId(7), ProducerEpoch(0))


def committed(shell: Shell, group: str, partitions: Any = None) -> dict[tuple[str, int], int]:
    return fetched(shell.answer("offset_fetch", fetch(group, partitions), is_stable=False))


def codes(response: Any) -> list[int]:
    return [one.error_code for topic in response.topics for one in topic.partitions]


def test_a_commit_is_seen_and_answered_when_the_high_watermark_has_passed_it() -> None:
    """I-29. Before that a failover could take it back."""
    shell = Shell()
    shell.is_holding = True
    token = shell.submit("offset_commit", commit("g", {T0: 5}))
    assert committed(shell, "g", [T0]) == {}
    assert token not in shell.answers
    shell.advance()
    assert codes(shell.answers[token]) == [ErrorCode.NONE]
    assert committed(shell, "g", [T0]) == {T0: 5}


def test_an_acknowledged_commit_survives_a_failover_and_one_that_was_not_may_be_lost() -> None:
    """I-29."""
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.is_holding = True
    shell.submit("offset_commit", commit("g", {T0: 9}))
    assert committed(shell.fail_over(), "g") == {T0: 5}
    assert committed(shell.fail_over(keep=len(shell.log)), "g") == {T0: 9}


def test_a_commit_that_the_log_refuses_changes_nothing() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.is_refusing = True
    assert isinstance(shell.answer("offset_commit", commit("g", {T0: 9})), LogFull)
    assert isinstance(shell.answer("offset_commit", commit("new", {T0: 9})), LogFull)
    assert committed(shell, "g") == {T0: 5}
    assert [one.group_id for one in groups(shell)] == ["g"]


def groups(shell: Shell, states: Any = (), types: Any = ()) -> list[Any]:
    from millstream.wire.messages.list_groups import ListGroupsRequest

    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    found: list[Any] = shell.answer("list_groups", request)
    return found


def test_a_group_that_nobody_knows_has_no_offsets_which_is_no_error() -> None:
    shell = Shell()
    answer = shell.answer("offset_fetch", fetch("g", [T0, T1]), is_stable=True)
    assert [one.committed_offset for one in answer.topics[0].partitions] == [-1, -1]
    assert shell.answer("offset_fetch", fetch("g"), is_stable=True).topics == []


@pytest.mark.parametrize(("version", "error"), [(8, IllegalGeneration), (9, GroupNotFound)])
def test_a_member_of_a_group_that_is_not_there_cannot_commit(version: int, error: type) -> None:
    """I-28. Older clients have no word for a missing group."""
    shell = Shell()
    request = commit("g", {T0: 5}, member="m", generation=3)
    assert isinstance(shell.answer("offset_commit", request, version=version), error)
    assert shell.log == []


def test_text_that_is_too_long_fails_its_partition_alone() -> None:
    shell = Shell(settings=MutableGroupSettings(offset_metadata_bytes_max=4))
    request = commit("g", {T0: 5, T1: 6}, metadata="four")
    request.topics[0].partitions[1].committed_metadata = "fives"
    answer = shell.answer("offset_commit", request)
    assert codes(answer) == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert committed(shell, "g") == {T0: 5}


def test_a_transactional_commit_counts_when_its_transaction_commits() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    answer = shell.answer("txn_offset_commit", txn_commit("g", {T0: 9}))
    assert codes(answer) == [ErrorCode.NONE]
    assert committed(shell, "g") == {T0: 5}
    stable = shell.answer("offset_fetch", fetch("g", [T0, T1]), is_stable=True)
    assert codes(stable) == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
    shell.end_transaction(PRODUCER, is_commit=True)
    assert committed(shell, "g") == committed(shell.fail_over(), "g") == {T0: 9}


def test_an_aborted_transaction_leaves_the_offset_before_it() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5}))
    shell.answer("txn_offset_commit", txn_commit("g", {T0: 9}))
    shell.end_transaction(PRODUCER, is_commit=False)
    assert committed(shell, "g") == committed(shell.fail_over(), "g") == {T0: 5}


def test_a_stable_offset_waits_for_the_marker_and_for_commits_on_their_way() -> None:
    """I-29. Who reads exactly once must not begin before what is about to count."""
    shell = Shell()
    shell.answer("txn_offset_commit", txn_commit("g", {T0: 9}))
    shell.is_holding = True
    shell.end_transaction(PRODUCER, is_commit=True)
    shell.submit("offset_commit", commit("g", {T1: 3}))
    request = fetch("g", [T0, T1])
    early = shell.submit("offset_fetch", request, is_stable=True)
    everything = shell.submit("offset_fetch", fetch("g"), is_stable=True)
    shell.submit("offset_commit", commit("g", {T1: 4}))
    assert not shell.answers.keys() & {early, everything}
    shell.advance()
    assert codes(shell.answers[early]) == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]
    assert [one.committed_offset for one in shell.answers[early].topics[0].partitions] == [-1, 3]
    assert fetched(shell.answers[everything]) == {T1: 3}
    stable = shell.answer("offset_fetch", request, is_stable=True)
    assert fetched(stable) == {T0: 9, T1: 4}


def test_a_stable_answer_that_waits_knows_what_was_deleted_before_it() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5, T1: 6}))
    shell.is_holding = True
    shell.submit("offset_delete", offset_delete("g", [T0]))
    waiting = shell.submit("offset_fetch", fetch("g"), is_stable=True)
    assert waiting not in shell.answers
    assert committed(shell, "g") == {T0: 5, T1: 6}
    shell.advance()
    assert fetched(shell.answers[waiting]) == {T1: 6}


def test_transactions_need_a_group() -> None:
    shell = Shell()
    assert isinstance(shell.answer("txn_offset_commit", txn_commit("", {T0: 1})), InvalidGroupId)
    request = txn_commit("g", {T0: 1}, member="m", generation=3)
    assert isinstance(shell.answer("txn_offset_commit", request), IllegalGeneration)


def test_offsets_are_deleted_and_stay_deleted() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5, T1: 6}))
    answer = shell.answer("offset_delete", offset_delete("g", [T0, ("none", 3)]))
    assert codes(answer) == [0, 0]
    assert committed(shell, "g") == committed(shell.fail_over(), "g") == {T1: 6}
    assert isinstance(shell.answer("offset_delete", offset_delete("no", [T0])), GroupNotFound)
    assert isinstance(shell.answer("offset_delete", offset_delete("", [T0])), InvalidGroupId)


def test_offsets_of_a_deleted_topic_go_and_those_of_its_namesake_stay() -> None:
    shell = Shell()
    shell.answer("offset_commit", commit("g", {T0: 5, ("u", 0): 6}))
    shell.answer("txn_offset_commit", txn_commit("g", {T1: 9}))
    shell.topics.create("t", 1)
    again = commit("h", {T0: 1})
    facts = shell.topics.by_name("t")
    assert facts is not None
    again.topics[0].topic_id = facts.topic_id
    shell.answer("offset_commit", again)
    shell.shard.partitions_deleted(["t"])
    shell.drain()
    shell.end_transaction(PRODUCER, is_commit=True)
    for one in (shell, shell.fail_over()):
        assert committed(one, "g") == {("u", 0): 6}
        assert committed(one, "h") == {T0: 1}
    assert shell.shard.counts.offset_deletions == 2


def test_an_offset_of_another_topic_of_the_same_name_is_none() -> None:
    """Version 10 has topic ids on both sides."""
    shell = Shell()
    request = commit("g", {T0: 5})
    old, new = shell.topics.create("t", 1).topic_id, shell.topics.create("t", 1).topic_id
    request.topics[0].topic_id = old
    answer = shell.answer("offset_commit", request)
    assert answer.topics[0].topic_id == old
    query = fetch("g", [T0])
    assert query.topics is not None
    for topic_id, found in ((old, {T0: 5}), (new, {})):
        query.topics[0].topic_id = topic_id
        assert fetched(shell.answer("offset_fetch", query, is_stable=False)) == found


def test_a_retention_for_ever_is_written_as_the_last_time_that_there_is() -> None:
    shell = Shell()
    request = commit("g", {T0: 5}, retention_ms=2**63 - 1)
    shell.answers.pop(shell.submit("offset_commit", request, version=4))
    written = [logged.what for logged in shell.log if isinstance(logged.what, Entry)]
    (read,) = decode_batches(encode(written, now_ms=shell.wall_ms))
    assert read.what == written[0]
    shell.wall_ms += 100 * WEEK_MS
    shell.expire()
    assert committed(shell, "g") == {T0: 5}
