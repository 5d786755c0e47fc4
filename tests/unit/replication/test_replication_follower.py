"""A followed partition, and the plan of what a leader is asked for: answers of every kind."""

from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane, HeldBackground
from kits.storage.log_stories import Story, batch_of
from millstream.kernels.batches import HEADER_BYTES
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId
from millstream.model.invariant import InvariantViolated
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.fetch_plan import FOREVER_S, FetchPlan, key_of
from millstream.replication.fetch_wire import (
    VERSIONS,
    FetchAnswer,
    FetchLimits,
    decode,
    encode,
)
from millstream.replication.follower import (
    FetchedPart,
    Follower,
    FollowerContext,
    FollowerCounts,
    FollowerState,
    Next,
)
from millstream.storage.config import LogConfig
from millstream.storage.epochs import EpochEnd
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from millstream.wire.primitives import MalformedFrame

LEADER = BrokerId(1)
TOPIC_ID = TopicId(UUID(int=7))


def of_epoch(epoch: int, offset: int, *values: bytes) -> bytes:
    """A batch as a leader of that epoch would send it."""
    batch = batch_of(*values)
    batch[0:8] = offset.to_bytes(8, "big")
    batch[12:16] = epoch.to_bytes(4, "big")
    return bytes(batch)


def follower(
    epoch: int = 1, story: Story | None = None, config: LogConfig | None = None
) -> Follower:
    story = story or Story()
    if config is not None:
        story.log.config = config
    context = FollowerContext(
        lambda _log, done: done(None),
        lambda _: None,
        FollowerCounts(),
        ReplicationDependencies(),
        lambda _: None,
    )
    return Follower(story.log, TOPIC_ID, FollowerState(LeaderEpoch(epoch), 0, LEADER), context)


def part(
    records: bytes = b"",
    *,
    error: int = 0,
    high: int = 0,
    start: int = 0,
    diverging: tuple[int, int] | None = None,
) -> FetchedPart:
    ends = None if diverging is None else EpochEnd(LeaderEpoch(diverging[0]), Offset(diverging[1]))
    return FetchedPart(error, high, start, ends, records)


def take(one: Follower, told: FetchedPart) -> Next:
    position = one.fetch_position()
    assert position is not None
    return one.take(position, told)


def test_records_are_appended_as_they_are_and_the_marks_follow() -> None:
    one = follower()
    assert take(one, part(of_epoch(1, 0, b"a", b"b"), high=5)) is Next.FETCH
    assert (one.log.log_end, one.log.high_watermark, one.log.latest_epoch) == (2, 2, 1)
    assert take(one, part(high=1)) is Next.FETCH
    assert one.log.high_watermark == 2, "what counted stays counted"
    take(one, part(high=2, start=1))
    assert one.log.log_start == 1


def test_a_batch_that_the_limit_cut_off_is_left_out() -> None:
    one = follower()
    whole, cut = of_epoch(1, 0, b"a"), of_epoch(1, 1, b"b")
    assert take(one, part(whole + cut[:-1])) is Next.FETCH
    assert one.log.log_end == 1
    assert take(one, part(cut[:HEADER_BYTES])) is Next.BACK_OFF, "not even one: never again so"


def test_damage_on_the_way_is_not_appended() -> None:
    one = follower()
    batch = bytearray(of_epoch(1, 0, b"a"))
    batch[-1] ^= 1
    assert take(one, part(bytes(batch))) is Next.BACK_OFF
    assert one.log.log_end == 0


def test_batches_of_a_later_epoch_than_the_leaders_are_not_appended() -> None:
    """I-12: it leads no longer, and its log was truncated and written again as its answer left."""
    one = follower(epoch=1)
    take(one, part(of_epoch(1, 0, b"a")))
    mixed = of_epoch(1, 1, b"of the old leader") + of_epoch(2, 2, b"of the new one")
    assert take(one, part(mixed)) is Next.BACK_OFF
    assert (one.log.log_end, one.log.latest_epoch) == (1, 1)
    one.follow(FollowerState(LeaderEpoch(2), 1, LEADER))
    assert take(one, part(of_epoch(2, 1, b"b") + of_epoch(2, 2, b"c"))) is Next.FETCH
    assert one.log.log_end == 3


def test_an_answer_to_what_would_not_be_asked_any_more_is_not_taken() -> None:
    """I-12: the epoch, or the log's end, is another by now."""
    one = follower()
    position = one.fetch_position()
    assert position is not None
    one.follow(FollowerState(LeaderEpoch(2), 1, LEADER))
    assert one.take(position, part(of_epoch(1, 0, b"a"))) is Next.VOID
    assert one.log.log_end == 0
    take(one, part(of_epoch(1, 0, b"a")))
    late = position._replace(leader_epoch=LeaderEpoch(2))
    assert one.take(late, part(diverging=(0, 0))) is Next.VOID
    assert one.log.log_end == 1


def test_a_state_never_goes_back() -> None:
    one = follower(epoch=3)
    with pytest.raises(InvariantViolated, match="I-15"):
        one.follow(FollowerState(LeaderEpoch(2), 9, LEADER))


@pytest.mark.parametrize(
    ("theirs", "end"),
    [
        ((2, 3), 3),  # the leader has less of the same epoch
        ((1, 2), 2),  # it never had ours: its last one ends where ours begins
        ((1, 1), 1),
        ((0, 9), 0),  # it has one that we do not: everything above our last below it
    ],
)
def test_logs_that_part_are_cut_where_they_may_agree(theirs: tuple[int, int], end: int) -> None:
    one = follower(epoch=4)
    take(one, part(of_epoch(1, 0, b"a", b"b")[:0] + of_epoch(1, 0, b"a") + of_epoch(1, 1, b"b")))
    take(one, part(of_epoch(2, 2, b"c") + of_epoch(2, 3, b"d")))
    assert take(one, part(diverging=theirs)) is Next.FETCH
    assert one.log.log_end == end


def test_a_leader_that_says_nonsense_is_left_alone_for_a_while() -> None:
    one = follower()
    take(one, part(of_epoch(1, 0, b"a")))
    assert take(one, part(diverging=(1, 1))) is Next.BACK_OFF
    assert one.log.log_end == 1


def test_records_without_epochs_are_cut_to_the_high_watermark() -> None:
    """KIP-101's fall-back: nothing else is known to agree."""
    one = follower()
    take(one, part(of_epoch(1, 0, b"a") + of_epoch(1, 1, b"b"), high=1))
    assert one.prepare() is Next.FETCH
    assert one.log.log_end == 2
    one.log.epochs.clear()
    assert one.prepare() is Next.FETCH
    assert one.log.log_end == 1


@pytest.mark.parametrize(
    ("error", "following"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, Next.OUT_OF_RANGE),
        (ErrorCode.FENCED_LEADER_EPOCH, Next.METADATA),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Next.BACK_OFF),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Next.BACK_OFF),
        (ErrorCode.KAFKA_STORAGE_ERROR, Next.BACK_OFF),
        (9999, Next.BACK_OFF),
    ],
)
def test_what_follows_from_a_leaders_error(error: int, following: Next) -> None:
    assert take(follower(), part(error=error)) is following


def test_a_failed_log_is_not_followed() -> None:
    one = follower()
    one.log.owner.failed(OSError(5, "gone"))
    assert take(one, part(of_epoch(1, 0, b"a"))) is Next.FAILED


@pytest.mark.parametrize(
    ("start", "end", "ours"), [(0, 1, (0, 1)), (5, 9, (5, 5)), (0, 2, (0, 2)), (0, 9, (0, 2))]
)
def test_out_of_range_begins_where_the_leader_can_go_on(
    start: int, end: int, ours: tuple[int, int]
) -> None:
    one = follower()
    take(one, part(of_epoch(1, 0, b"a") + of_epoch(1, 1, b"b")))
    one.resume_out_of_range(leader_start=Offset(start), leader_end=Offset(end))
    assert (one.log.log_start, one.log.log_end) == ours


def test_what_is_to_be_flushed_is_not_acknowledged_before() -> None:
    background = HeldBackground()
    plane = DataPlane(LogConfig(flush_messages=1), background=background)
    plane.create("t")
    log, counts = plane.leader("t").log, FollowerCounts()
    ready: list[Follower] = []
    context = FollowerContext(
        plane.logs.flush, lambda _: None, counts, ReplicationDependencies(), ready.append
    )
    one = Follower(log, TOPIC_ID, FollowerState(LeaderEpoch(1), 0, LEADER), context)
    assert take(one, part(of_epoch(1, 0, b"a"))) is Next.WAIT
    assert one.fetch_position() is None
    background.run()
    assert ready == [one]
    position = one.fetch_position()
    assert position is not None
    assert position.offset == 1


# -- the plan -----------------------------------------------------------------------------------


def answer(plan: FetchPlan, *parts: tuple[Follower, FetchedPart], session: int = 77) -> bool:
    told = FetchAnswer(0, session, iter([(key_of(one), what) for one, what in parts]))
    return plan.answered(told, now_s=0.0, delay_max_s=1.0)[0]


def test_only_what_changed_is_asked_for_again() -> None:
    plan, one = FetchPlan(), follower()
    assert plan.request(0.0) is None
    plan.add(one)
    need = plan.request(0.0)
    assert need is not None
    assert need.session == (0, 0)
    assert [key for key, _ in need.positions] == [key_of(one)]
    answer(plan, (one, part(of_epoch(1, 0, b"a"))))
    need = plan.request(0.0)
    assert need is not None
    assert (need.session, [position.offset for _, position in need.positions]) == ((77, 1), [1])
    answer(plan)
    need = plan.request(0.0)
    assert need is not None
    assert (need.session, need.positions, need.forgotten) == ((77, 2), [], [])


def test_a_partition_in_trouble_is_left_out_and_comes_back() -> None:
    plan, one = FetchPlan(), follower()
    other = Follower(
        one.log,
        TopicId(UUID(int=8)),
        one.state,
        one._context,
    )
    plan.add(one)
    plan.add(other)
    plan.request(0.0)
    answer(plan, (one, part(error=ErrorCode.UNKNOWN_LEADER_EPOCH)))
    need = plan.request(0.0)
    assert need is not None
    assert need.forgotten == [key_of(one)]
    assert not need.positions
    answer(plan)
    need = plan.request(plan.due_s())
    assert need is not None
    assert [key for key, _ in need.positions] == [key_of(one)]


def test_who_is_fenced_waits_for_the_metadata() -> None:
    plan, one = FetchPlan(), follower()
    plan.add(one)
    plan.request(0.0)
    answer(plan, (one, part(error=ErrorCode.FENCED_LEADER_EPOCH)))
    assert plan.due_s() == FOREVER_S
    assert plan.request(1e9) is None
    one.follow(FollowerState(LeaderEpoch(2), 1, LEADER))
    plan.add(one)
    need = plan.request(0.0)
    assert need is not None
    assert need.session == (0, 0)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH],
)
def test_a_lost_session_is_begun_anew(error: ErrorCode) -> None:
    plan, one = FetchPlan(), follower()
    plan.add(one)
    plan.request(0.0)
    answer(plan)
    plan.request(0.0)
    is_good, _ = plan.answered(FetchAnswer(error, 0, iter(())), now_s=0.0, delay_max_s=1.0)
    assert is_good
    need = plan.request(0.0)
    assert need is not None
    assert need.session == (0, 0)
    assert len(need.positions) == 1


def test_what_an_answer_told_in_vain_is_asked_for_again() -> None:
    """The high watermark of an answer that came too late would be missed until it moves."""
    plan, one = FetchPlan(), follower()
    plan.add(one)
    plan.request(0.0)
    answer(plan)
    plan.request(0.0)
    one.follow(FollowerState(LeaderEpoch(2), 1, LEADER))
    plan.add(one)
    answer(plan, (one, part(high=5)))
    need = plan.request(0.0)
    assert need is not None
    assert need.session == (0, 0)


def test_a_leader_without_room_for_sessions_is_asked_for_everything_each_time() -> None:
    plan, one = FetchPlan(), follower()
    plan.add(one)
    for _ in range(3):
        need = plan.request(0.0)
        assert need is not None
        assert (need.session, len(need.positions)) == ((0, 0), 1)
        answer(plan, session=0)


# -- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_are_read_by_the_generic_codec(version: int) -> None:
    one = follower()
    position = one.fetch_position()
    assert position is not None
    key = key_of(one)
    body = encode(
        FetchLimits(1, 2, 3, 4),
        (BrokerId(5), BrokerEpoch(6)),
        (7, 8),
        positions=[(key, position)],
        forgotten=[key],
    )
    read = FetchRequest.decode(memoryview(body), version)
    assert (read.replica_state.replica_id, read.replica_state.replica_epoch) == (5, 6)
    assert (read.max_wait_ms, read.min_bytes, read.max_bytes) == (1, 2, 3)
    assert (read.session_id, read.session_epoch) == (7, 8)
    (topic,) = read.topics
    assert topic.topic_id == TOPIC_ID
    (found,) = topic.partitions
    assert found.partition_max_bytes == 4
    assert found.current_leader_epoch == position.leader_epoch
    assert read.forgotten_topics_data[0].partitions == [0]


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_of_the_generic_codec_are_read_and_damage_is_found(version: int) -> None:
    data = PartitionData(partition_index=3, error_code=0, high_watermark=9, log_start_offset=2)
    data.records = b"records"
    data.diverging_epoch = EpochEndOffset(epoch=4, end_offset=5)
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    raw = FetchResponse(error_code=0, session_id=8, responses=[topic]).encode(version)
    told = decode(memoryview(raw))
    assert (told.error, told.session_id) == (0, 8)
    ((key, found),) = told.parts
    assert key == (TOPIC_ID.bytes, 3)
    assert (found.high_watermark, found.log_start, found.diverging) == (9, 2, (4, 5))
    assert bytes(found.records) == b"records"
    for size in range(len(raw)):
        with pytest.raises(MalformedFrame):
            list(decode(memoryview(raw[:size])).parts)
