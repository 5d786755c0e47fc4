"""The controller's files: what is written is read, and anything else is told as damage."""

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kits.controller.controller_kit import topic_of
from millstream.controller import documents
from millstream.controller.documents import BrokerConfigs, BrokerState, UnreadableDocument
from millstream.model.ids import BrokerId, TopicId

TOPIC = topic_of(
    "orders", TopicId(UUID(int=7 << 100)), [1, 2], [2, 1], configs={"retention.ms": "5"}
)
WHOLE = documents.encode_topic(TOPIC, starts=3)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(configs=st.dictionaries(texts, texts, max_size=5), starts=st.integers(1, 2**31))
def test_a_topic_is_read_as_it_was_written(configs: dict[str, str], starts: int) -> None:
    topic = TOPIC._replace(configs=configs)
    raw = documents.encode_topic(topic, starts=starts)
    assert documents.decode_topic(raw, starts=starts) == topic


@given(
    broker_id=st.integers(0, 2**31 - 1),
    cluster_id=texts,
    starts=st.integers(0, 2**31),
    configs=st.dictionaries(texts, texts, max_size=5),
)
def test_the_small_files_are_read_as_they_were_written(
    broker_id: int, cluster_id: str, starts: int, configs: dict[str, str]
) -> None:
    state = BrokerState(BrokerId(broker_id), cluster_id, starts)
    assert documents.decode_state(documents.encode_state(state)) == state
    broker = BrokerConfigs(cluster_id, configs)
    assert documents.decode_broker_configs(documents.encode_broker_configs(broker)) == broker
    assert documents.decode_producer_ids(documents.encode_producer_ids(starts)) == starts


@given(position=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_noticed(position: int, value: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] = value
    if damaged == WHOLE:
        return
    with pytest.raises(UnreadableDocument):
        documents.decode_topic(bytes(damaged), starts=3)


def test_a_torn_file_is_noticed_wherever_it_is_torn() -> None:
    for size in range(len(WHOLE)):
        with pytest.raises(UnreadableDocument):
            documents.decode_topic(WHOLE[:size], starts=3)
        with pytest.raises(UnreadableDocument):
            documents.decode_topic(WHOLE[:size] + bytes(len(WHOLE) - size), starts=3)


@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_read_or_told_as_damage(raw: bytes) -> None:
    for decode in (documents.decode_state, documents.decode_producer_ids):
        with pytest.raises(UnreadableDocument):
            decode(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
HEADS = ["name", "topic_id", "starts", "configs", "partition", "replicas", "isr", "leader"]


@given(
    head=st.dictionaries(st.sampled_from(HEADS), json_values),
    line=st.dictionaries(st.sampled_from(HEADS), json_values),
)
def test_well_sealed_nonsense_is_told_as_damage(
    head: dict[str, object], line: dict[str, object]
) -> None:
    """Somebody edited the file and put the right checksum below."""
    raw = documents.encode("topic", [head, line])
    with pytest.raises(UnreadableDocument):
        documents.decode_topic(raw, starts=3)


def test_kinds_and_versions_are_told_apart() -> None:
    with pytest.raises(UnreadableDocument, match="kind 'topic'"):
        documents.decode_state(WHOLE)
    newer = documents.encode("broker", [{"version": 2}])
    with pytest.raises(UnreadableDocument, match="another release"):
        documents.decode_state(newer)


def test_a_topic_of_a_later_start_than_ours_is_damage() -> None:
    """The count of starts was put back: leader epochs would fall."""
    with pytest.raises(UnreadableDocument, match="only start 2"):
        documents.decode_topic(WHOLE, starts=2)
