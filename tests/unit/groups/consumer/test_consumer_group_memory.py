"""What a group keeps does not grow with what its members once said."""

import gc
from weakref import ref

from millstream.groups.consumer.state import GroupState
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ConsumerMemberKey
from millstream.groups.records.values import ConsumerGroupMemberMetadataValue
from millstream.model.ids import GroupId, MemberId

KEY = ConsumerMemberKey(GroupId("g"), MemberId("m"))


def test_subscriptions_that_nobody_has_any_more_are_forgotten() -> None:
    """A consumer that matches patterns itself says another list whenever a topic is created."""
    state = GroupState(GroupId("g"))
    state.became_live()
    past = []
    for number in range(500):
        names = [f"topic-{one}" for one in range(number)]
        value = ConsumerGroupMemberMetadataValue(
            subscribed_topic_names=names, classic_member_metadata=None
        )
        state.apply(Entry(KEY, value))
        past.append(ref(state.members[MemberId("m")].topic_names))
    gc.collect()
    assert sum(one() is not None for one in past) < 50
    assert state.members[MemberId("m")].topic_names == frozenset(names)
