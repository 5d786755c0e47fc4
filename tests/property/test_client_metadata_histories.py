"""Random histories of a topic, told by brokers that lag behind it: the client never goes back.

The truth is a list of states, each newer than the one before: leaders move (the epoch rises),
partitions are added, the topic is deleted and made again. An answer or a hint may show any state
that there was. Whatever the order, for one topic id the client's epochs never fall and partitions
never vanish; and once everything was told by a broker that is up to date, the client knows the
truth.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.metadata import LeaderHint, MetadataCache
from millstream.model.ids import TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BROKERS = (1, 2, 3)


@dataclass(frozen=True)
class State:
    """The topic at one moment; without leaders it is deleted."""

    topic_id: int
    leaders: tuple[tuple[int, int], ...]

    def answer(self) -> MetadataResponse:
        code = ErrorCode.NONE if self.leaders else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = MetadataResponseTopic(
            name="t",
            topic_id=UUID(int=self.topic_id if self.leaders else 0),
            error_code=code,
            partitions=[
                MetadataResponsePartition(partition_index=at, leader_id=leader, leader_epoch=epoch)
                for at, (leader, epoch) in enumerate(self.leaders)
            ],
        )
        brokers = [MetadataResponseBroker(node_id=one, host="h", port=one) for one in BROKERS]
        return MetadataResponse(brokers=brokers, topics=[topic])


def moved(state: State, at: int, leader: int) -> State:
    if not state.leaders:
        return replace(state, topic_id=state.topic_id + 1, leaders=((leader, 0),))
    at %= len(state.leaders)
    leaders = list(state.leaders)
    leaders[at] = (leader, leaders[at][1] + 1)
    return replace(state, leaders=tuple(leaders))


def grown(state: State, _: int, leader: int) -> State:
    return replace(state, leaders=(*state.leaders, (leader, 0))) if state.leaders else state


def deleted(state: State, _: int, __: int) -> State:
    return replace(state, leaders=())


CHANGES: list[Callable[[State, int, int], State]] = [moved, moved, moved, grown, deleted]
Steps = list[tuple[int, int, int]]


def history(steps: Steps) -> list[State]:
    states = [State(1, ((1, 0),))]
    for change, at, leader in steps:
        states.append(CHANGES[change](states[-1], at, leader))
    return states


steps = st.lists(
    st.tuples(st.integers(0, len(CHANGES) - 1), st.integers(0, 5), st.sampled_from(BROKERS)),
    max_size=20,
)


@given(steps=steps, data=st.data())
def test_a_client_never_goes_back(steps: Steps, data: st.DataObject) -> None:
    states = history(steps)
    cache = MetadataCache(max_age_s=1e9, max_idle_s=1e9)
    told: dict[int, list[int]] = {}
    for now_s in range(data.draw(st.integers(1, 25))):
        state = data.draw(st.sampled_from(states))
        is_hint = data.draw(st.booleans())
        if is_hint and state.leaders:
            at = data.draw(st.integers(0, len(state.leaders) - 1))
            known = cache.topic("t")
            # A leader hints about the topic that was asked for by its id.
            if known is not None and known.topic_id == UUID(int=state.topic_id):
                cache.partition_failed(TopicPartition("t", at), LeaderHint(*state.leaders[at]))
        else:
            cache.update(state.answer(), names=["t"], now_s=now_s)
        topic = cache.topic("t")
        if topic is None:
            continue
        assert topic.topic_id is not None
        epochs: list[int] = [one.leader_epoch for one in topic.partitions]
        before = told.get(topic.topic_id.int, [])
        if told.get(-1) == [topic.topic_id.int]:
            assert len(epochs) >= len(before)
            assert all(new >= old for new, old in zip(epochs, before, strict=False))
        told[topic.topic_id.int] = epochs
        told[-1] = [topic.topic_id.int]
    cache.update(states[-1].answer(), names=["t"], now_s=100)
    topic = cache.topic("t")
    truth = states[-1].leaders
    assert (topic is None) == (not truth)
    if topic is not None:
        assert tuple((one.leader, one.leader_epoch) for one in topic.partitions) == truth
