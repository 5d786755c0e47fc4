"""Records that are gone: found, told, and survived when the query may go on."""

from uuid import UUID

import pytest

from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.data_loss import (
    ClusterView,
    Loss,
    LossKind,
    Survey,
    behind,
    check_available_now,
    is_gap_lost,
    judge,
    resume_position,
    survey,
)
from millstream.pipelines.errors import DataLost, RangeInvalid
from millstream.pipelines.ranges import OffsetRange
from millstream.pipelines.source_offset import SourceOffset

OLD_ID, NEW_ID = TopicId(UUID(int=1)), TopicId(UUID(int=2))


def at(**offsets: int) -> dict[TopicPartition, Offset]:
    """a0=5 is offset 5 of a-0."""
    return {TopicPartition(key[0], int(key[1:])): Offset(value) for key, value in offsets.items()}


def view(
    earliest: dict[TopicPartition, Offset],
    latest: dict[TopicPartition, Offset],
    topic_id: TopicId | None = None,
) -> ClusterView:
    ids = {} if topic_id is None else {"a": topic_id}
    return ClusterView(earliest=earliest, latest=latest, topic_ids=ids)


def standing(topic_id: TopicId | None = None, **offsets: int) -> SourceOffset:
    ids = {} if topic_id is None else {"a": topic_id}
    return SourceOffset(positions=at(**offsets), topic_ids=ids)


def kinds(found: Survey) -> list[LossKind]:
    return [loss.kind for loss in found.losses]


def test_nothing_is_lost_while_positions_are_there() -> None:
    found = survey(standing(OLD_ID, a0=5, a1=0), view(at(a0=5, a1=0), at(a0=5, a1=9), OLD_ID))
    assert found == Survey(begins=at(a0=5, a1=0), losses=())


def test_a_position_that_aged_out() -> None:
    found = survey(standing(a0=5), view(at(a0=8), at(a0=20)))
    assert found.begins == at(a0=8)
    assert kinds(found) == [LossKind.START_OFFSET_RESET]
    assert "a-0 should continue at offset 5, but now begins at 8" in str(found.losses[0])


def test_a_position_behind_the_end() -> None:
    found = survey(standing(a0=50), view(at(a0=0), at(a0=20)))
    assert found.begins == at(a0=20)
    assert kinds(found) == [LossKind.PARTITION_OFFSET_CHANGED]


def test_partitions_that_are_gone() -> None:
    found = survey(standing(a0=5, a1=6, b0=1), view(at(a0=0), at(a0=9)))
    assert found.begins == at(a0=5)
    assert kinds(found) == [LossKind.PARTITIONS_DELETED]
    assert "deleted, or are no longer selected by the options" in found.losses[0].text
    assert "a-1, b-0" in str(found.losses[0])


@pytest.mark.parametrize("latest", [2, 5, 900])
def test_a_topic_created_again_is_found_however_far_it_has_grown(latest: int) -> None:
    """The connector only notices while the new topic is shorter than the old position."""
    found = survey(standing(OLD_ID, a0=5), view(at(a0=0), at(a0=latest), NEW_ID))
    assert found.begins == at(a0=0)
    assert kinds(found) == [LossKind.TOPIC_RECREATED]
    assert "after offsets {0: 5}" in str(found.losses[0])


def test_a_topic_created_again_with_fewer_partitions_is_one_finding() -> None:
    found = survey(standing(OLD_ID, a0=5, a1=6), view(at(a0=3), at(a0=9), NEW_ID))
    assert found.begins == at(a0=3)
    assert kinds(found) == [LossKind.TOPIC_RECREATED]


def test_a_topic_created_again_without_any_partition_of_ours_is_told() -> None:
    found = survey(standing(OLD_ID, a7=5), view({}, {}, NEW_ID))
    assert kinds(found) == [LossKind.TOPIC_RECREATED]


def test_without_ids_nothing_is_claimed() -> None:
    """A checkpoint of the connector, or an old broker."""
    assert survey(standing(a0=5), view(at(a0=0), at(a0=9), NEW_ID)).losses == ()
    assert survey(standing(OLD_ID, a0=5), view(at(a0=0), at(a0=9))).losses == ()


def test_new_partitions_begin_at_their_earliest_offset() -> None:
    found = survey(standing(a0=5), view(at(a0=0, a1=0), at(a0=9, a1=4)))
    assert found == Survey(begins=at(a0=5, a1=0), losses=())
    aged = survey(standing(a0=5), view(at(a0=0, a1=3), at(a0=9, a1=4)))
    assert aged.begins == at(a0=5, a1=3)
    assert kinds(aged) == [LossKind.ADDED_PARTITION_AGED]
    gone = survey(standing(a0=5), view(at(a0=0), at(a0=9, a1=4)))
    assert gone.begins == at(a0=5)
    assert kinds(gone) == [LossKind.INITIAL_OFFSET_NOT_FOUND]


def test_the_option_decides() -> None:
    loss = Loss(LossKind.PARTITIONS_DELETED, "Partitions a-0 have been deleted.")
    with pytest.raises(DataLost) as caught:
        judge([loss], fail_on_data_loss=True)
    told = str(caught.value)
    assert "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions a-0 have been deleted." in told
    assert "failOnDataLoss to false" in told
    (warning,) = judge([loss], fail_on_data_loss=False)
    assert "continues, because failOnDataLoss is false" in warning
    assert judge([], fail_on_data_loss=True) == ()


def test_latest_offsets_below_the_position_are_worth_a_second_question() -> None:
    assert behind(standing(a0=5, a1=5), at(a0=4, a1=5, b0=0)) == [TopicPartition("a", 0)]


def test_available_now_keeps_its_end() -> None:
    frozen = at(a0=10, a1=5)
    check_available_now(frozen=frozen, end=at(a0=7, a1=5), latest=at(a0=99, a1=5, b0=1))
    for end, latest, told in [
        (at(a0=7), at(a0=9), "other partitions"),
        (at(a0=11, a1=5), at(a0=99, a1=5), "after the end 10"),
        (at(a0=7, a1=5), at(a0=99), "latest offset .none."),
        (at(a0=7, a1=5), at(a0=6, a1=5), "latest offset .6. fell below"),
    ]:
        with pytest.raises(RangeInvalid, match=told):
            check_available_now(frozen=frozen, end=end, latest=latest)


RANGE = OffsetRange("a", 0, Offset(10), Offset(20))


@pytest.mark.parametrize(
    ("position", "earliest", "latest", "resumed", "is_loss"),
    [
        (10, 0, 30, 10, False),  # there after all
        (10, 15, 30, 15, True),  # aged out
        (10, 25, 30, 20, True),  # all of it aged out
        (10, 0, 5, 20, True),  # the topic is shorter now
        (15, 0, 15, 20, True),
    ],
)
def test_a_task_goes_on_where_something_is_left(
    position: int, earliest: int, latest: int, resumed: int, is_loss: bool
) -> None:
    found, loss = resume_position(
        RANGE, Offset(position), earliest=Offset(earliest), latest=Offset(latest)
    )
    assert found == resumed
    assert (loss is not None) is is_loss
    if loss is not None:
        assert f"Offsets [{position}, {resumed}) of a-0" in str(loss)


def test_whatever_is_earliest_may_move() -> None:
    """A batch from `earliest` never asked for the records that aged out before it came to them."""
    moving = RANGE._replace(starts_at_earliest=True)
    earliest, latest = Offset(15), Offset(30)
    assert resume_position(moving, Offset(10), earliest=earliest, latest=latest) == (15, None)
    # But it had asked for those in the middle.
    _, loss = resume_position(moving, Offset(12), earliest=earliest, latest=latest)
    assert loss is not None


def test_holes_of_compaction_are_no_loss() -> None:
    def is_lost(position: int, next_offset: int, log_start: int) -> bool:
        return is_gap_lost(
            position=Offset(position), next_offset=Offset(next_offset), log_start=Offset(log_start)
        )

    assert not is_lost(10, 15, 0)
    assert not is_lost(10, 15, 10)
    assert is_lost(10, 15, 12)
    assert not is_lost(10, 10, 12)
