"""What the client believes of a cluster after answers that lag, err and contradict each other."""

from collections.abc import Sequence
from uuid import UUID

from millstream.client.metadata import Broker, LeaderHint, MetadataCache, Recreation
from millstream.model.ids import BrokerId, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

HERE = TopicPartition("events", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


def answer(
    *leaders: tuple[int, int],
    topic_id: UUID = OLD,
    error: ErrorCode = ErrorCode.NONE,
    brokers: Sequence[int] = (1, 2, 3),
) -> MetadataResponse:
    """Of the topic `events`, with (leader, epoch) of each partition."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=one, host=f"h{one}", port=9092) for one in brokers],
        controller_id=2,
        cluster_id="c",
        topics=[
            MetadataResponseTopic(
                name="events",
                topic_id=topic_id,
                error_code=error,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index, leader_id=leader, leader_epoch=epoch
                    )
                    for index, (leader, epoch) in enumerate(leaders)
                ],
            )
        ],
    )


class Told:
    """A cache that was told some answers, one a second."""

    def __init__(self, *answers: MetadataResponse) -> None:
        self.cache = MetadataCache(max_age_s=300, max_idle_s=600)
        self.now_s = 0.0
        self.recreations: list[Recreation] = []
        for one in answers:
            self.tell(one)

    def tell(self, response: MetadataResponse) -> None:
        self.now_s += 1
        self.recreations += self.cache.update(response, names=["events"], now_s=self.now_s)

    def leaders(self) -> list[tuple[int | None, int]]:
        topic = self.cache.topic("events")
        assert topic is not None
        return [(one.leader, one.leader_epoch) for one in topic.partitions]


def test_brokers_controller_and_topics_by_name_and_id() -> None:
    cache = Told(answer((1, 4), (3, 0))).cache
    assert [one.broker_id for one in cache.brokers] == [1, 2, 3]
    assert str(cache.controller) == "h2:9092"
    assert cache.cluster_id == "c"
    topic = cache.topic("events")
    assert topic is not None
    assert topic is cache.topic_by_id(TopicId(OLD))
    assert (topic.partition_count, topic.topic_id) == (2, OLD)
    leader = cache.leader_of(HERE)
    assert leader is not None
    assert (leader.broker.host, leader.leader_epoch, leader.topic_id) == ("h1", 4, OLD)
    assert cache.leader_of(TopicPartition("events", 2)) is None
    assert cache.leader_of(TopicPartition("events", -1)) is None
    assert cache.leader_of(TopicPartition("other", 0)) is None


def test_an_older_epoch_of_the_same_topic_changes_nothing() -> None:
    told = Told(answer((1, 4), (1, 4)), answer((2, 3), (2, 5)))
    assert told.leaders() == [(1, 4), (2, 5)]


def test_the_same_epoch_is_taken() -> None:
    """The leader of an epoch may become unknown and known again."""
    told = Told(answer((1, 4)), answer((-1, 4)))
    assert told.leaders() == [(None, 4)]
    told.tell(answer((1, 4)))
    assert told.leaders() == [(1, 4)]


def test_a_broker_that_knows_no_epochs_is_believed() -> None:
    assert Told(answer((1, 4)), answer((2, -1))).leaders() == [(2, -1)]


def test_partitions_of_the_same_topic_do_not_vanish() -> None:
    told = Told(answer((1, 0), (2, 0), (3, 0)), answer((1, 1)))
    assert told.leaders() == [(1, 1), (2, 0), (3, 0)]


def test_another_id_is_another_topic_with_epochs_of_its_own() -> None:
    told = Told(answer((1, 9), (1, 9)), answer((2, 0), topic_id=NEW))
    assert told.leaders() == [(2, 0)]
    assert told.recreations == [Recreation("events", TopicId(OLD), TopicId(NEW))]
    assert told.cache.topic_by_id(TopicId(OLD)) is None
    assert told.cache.topic_by_id(TopicId(NEW)) is not None


def test_a_recreation_is_noticed_across_the_time_without_the_topic() -> None:
    gone = answer(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    told = Told(answer((1, 9)), gone)
    assert told.cache.topic("events") is None
    assert told.cache.error_of("events") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told.cache.leader_of(HERE) is None
    told.tell(answer((2, 0), topic_id=NEW))
    assert told.recreations == [Recreation("events", TopicId(OLD), TopicId(NEW))]


def test_a_topic_that_only_seemed_gone_keeps_its_epochs() -> None:
    gone = answer(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    told = Told(answer((1, 9)), gone, answer((2, 8)))
    assert told.leaders() == [(1, 9)]
    assert told.recreations == []


def test_an_answer_without_an_id_keeps_the_known_one() -> None:
    told = Told(answer((1, 3)), answer((2, 4), topic_id=UUID(int=0)))
    topic = told.cache.topic("events")
    assert topic is not None
    assert topic.topic_id == OLD
    assert told.leaders() == [(2, 4)]


def test_an_answer_without_brokers_says_nothing() -> None:
    told = Told(answer((1, 3)), answer((2, 4), brokers=()))
    assert told.leaders() == [(1, 3)]
    assert len(told.cache.brokers) == 3


def test_a_leader_that_no_broker_has_is_none() -> None:
    cache = Told(answer((7, 3))).cache
    assert cache.leader_of(HERE) is None


def test_topics_that_were_not_asked_for_are_left_alone() -> None:
    cache = MetadataCache(max_age_s=300, max_idle_s=600)
    cache.update(answer((1, 0)), names=(), now_s=0)
    assert cache.topic("events") is None
    assert cache.brokers


# -- hints (KIP-951)


def test_a_hint_is_taken_when_it_is_newer_and_its_broker_is_known() -> None:
    told = Told(answer((1, 4)))
    assert told.cache.partition_failed(HERE, LeaderHint(2, 5))
    assert told.leaders() == [(2, 5)]
    assert told.cache.is_fresh("events", told.now_s)
    far = Broker(BrokerId(9), "h9", 1)
    assert told.cache.partition_failed(HERE, LeaderHint(9, 6, (far,)))
    leader = told.cache.leader_of(HERE)
    assert leader is not None
    assert leader.broker == far


def test_other_hints_are_not_and_metadata_is_asked_for() -> None:
    for hint in (None, LeaderHint(2, 4), LeaderHint(2, 3), LeaderHint(-1, 9), LeaderHint(9, 9)):
        told = Told(answer((1, 4)))
        assert not told.cache.partition_failed(HERE, hint)
        assert told.leaders() == [(1, 4)]
        assert not told.cache.is_fresh("events", told.now_s)
        assert told.cache.to_refresh(told.now_s) == ["events"]


def test_an_answer_older_than_a_hint_does_not_undo_it() -> None:
    told = Told(answer((1, 4)))
    told.cache.partition_failed(HERE, LeaderHint(2, 5))
    told.tell(answer((1, 4)))
    assert told.leaders() == [(2, 5)]


# -- when to ask


def test_what_is_old_wrong_or_in_error_has_to_be_asked_for() -> None:
    told = Told(answer((1, 0)))
    cache, now_s = told.cache, told.now_s
    assert cache.is_fresh("events", now_s + 299)
    assert not cache.is_fresh("events", now_s + 301)
    assert not cache.is_fresh("other", now_s)
    cache.invalidate("events")
    assert not cache.is_fresh("events", now_s)
    told.tell(answer(error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert not cache.is_fresh("events", told.now_s)


def test_topics_without_use_are_forgotten() -> None:
    told = Told(answer((1, 0)))
    assert told.cache.to_refresh(told.now_s + 400) == ["events"]
    told.cache.use("events", told.now_s + 400)
    assert told.cache.to_refresh(told.now_s + 900) == ["events"]
    assert told.cache.to_refresh(told.now_s + 1001) == []
    assert told.cache.topic("events") is None
    assert told.cache.topic_by_id(TopicId(OLD)) is None


def test_brokers_can_be_forgotten_without_the_epochs() -> None:
    told = Told(answer((1, 4)))
    told.cache.forget_brokers()
    assert told.cache.controller is None
    assert told.cache.leader_of(HERE) is None
    told.tell(answer((2, 3)))
    assert told.leaders() == [(1, 4)]
