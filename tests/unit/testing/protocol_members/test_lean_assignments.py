"""The lean members' assignors: everything is given out, and nothing before its release."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.testing.history.group_events import PartitionName
from millstream.testing.protocol_members.assignments import (
    Subscription,
    assign_cooperatively,
    assign_eagerly,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TOPICS = ("a", "b")
COUNTS = {"a": 5, "b": 4}
PLACES = [(topic, n) for topic, count in COUNTS.items() for n in range(count)]

owned = st.lists(st.sampled_from(PLACES), unique=True).map(tuple)
groups = st.dictionaries(
    st.sampled_from("uvwxyz"), owned.map(lambda it: Subscription(TOPICS, it)), min_size=1
)


@given(owned)
def test_bytes_there_and_back(places: tuple[PartitionName, ...]) -> None:
    spec = Subscription(TOPICS, tuple(sorted(places)))
    found = decode_subscription(encode_subscription(spec))
    assert (found.topics, sorted(found.owned)) == (spec.topics, sorted(spec.owned))
    assert sorted(decode_assignment(encode_assignment(places))) == sorted(places)
    assert decode_assignment(b"") == ()


@given(groups)
def test_eager_gives_everything_to_one(members: dict[str, Subscription]) -> None:
    found = assign_eagerly(members, COUNTS)
    assert sorted(place for places in found.values() for place in places) == sorted(PLACES)
    sizes = [len(places) for places in found.values()]
    assert max(sizes) - min(sizes) <= 1


@given(groups)
def test_cooperative_gives_nothing_that_another_has(members: dict[str, Subscription]) -> None:
    found = assign_cooperatively(members, COUNTS)
    for member, places in found.items():
        for place in places:
            others = [name for name, spec in members.items() if place in spec.owned]
            assert others in ([], [member])


@given(groups)
def test_cooperative_is_done_after_a_few_rounds(members: dict[str, Subscription]) -> None:
    """Each round everybody has what it was given, and joins again."""
    for _ in range(4):
        found = assign_cooperatively(members, COUNTS)
        members = {name: Subscription(TOPICS, tuple(places)) for name, places in found.items()}
    given_out = sorted(place for places in found.values() for place in places)
    assert given_out == sorted(PLACES)
    sizes = [len(places) for places in found.values()]
    assert max(sizes) - min(sizes) <= 1
    assert assign_cooperatively(members, COUNTS) == found
