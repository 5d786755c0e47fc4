"""Offset JSON of the Spark source: what a checkpoint may hold, and what it is refused for."""

import json
from uuid import UUID

import pytest

from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.errors import OffsetsInvalid
from millstream.pipelines.offsets_json import (
    offsets_from_document,
    offsets_from_text,
    partitions_from_text,
    text_from_offsets,
    text_from_partitions,
    timestamps_from_text,
)
from millstream.pipelines.source_offset import (
    RESERVED_PREFIX,
    SourceOffset,
    document_from_source_offset,
    source_offset_from_document,
)
from millstream.pipelines.subscription import is_topic_name

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
SOME_ID = TopicId(UUID("00112233-4455-6677-8899-aabbccddeeff"))


def test_offsets_are_written_as_the_connector_writes_them() -> None:
    text = text_from_offsets({B0: 7, A1: 5, A0: 23})
    assert text == '{"a":{"0":23,"1":5},"b":{"0":7}}'
    assert offsets_from_text(text) == {A0: 23, A1: 5, B0: 7}
    assert text_from_partitions([A1, B0, A0]) == '{"a":[0,1],"b":[0]}'


def test_partitions_are_sorted_as_numbers() -> None:
    offsets = {TopicPartition("a", number): Offset(1) for number in (10, 9, 2)}
    assert text_from_offsets(offsets) == '{"a":{"2":1,"9":1,"10":1}}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("[]", "the whole is not a JSON object"),
        ("null", "the whole is not a JSON object"),
        ('{"a":[0]}', '"a" is not a JSON object'),
        ('{"a":{"x":1}}', '"x" of "a" is not a partition'),
        ('{"a":{"01":1}}', '"01" of "a"'),
        ('{"a":{"-1":1}}', '"-1" of "a"'),
        ('{"a":{"2147483648":1}}', "not a partition number"),
        ('{"a":{"0":1.5}}', "not an integer"),
        ('{"a":{"0":"1"}}', "not an integer"),
        ('{"a":{"0":true}}', "not an integer"),
        ('{"a":{"0":null}}', "not an integer"),
        ('{"a":{"0":NaN}}', "NaN"),
        ('{"a":{"0":9223372036854775808}}', "out of bounds"),
        ('{"a":{"0":1,"0":2}}', "twice"),
        ('{"a":{"0":1}} x', "not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a":{"0":' + "9" * 5000 + "}}", "not JSON"),
    ],
)
def test_what_the_connector_guesses_at_is_refused(text: str, told: str) -> None:
    with pytest.raises(OffsetsInvalid) as caught:
        offsets_from_text(text)
    assert told in str(caught.value)
    assert '"topicA":{"0":23' in str(caught.value)


def test_timestamps_are_not_negative() -> None:
    assert timestamps_from_text('{"a":{"0":0}}') == {A0: 0}
    with pytest.raises(OffsetsInvalid, match="out of bounds"):
        timestamps_from_text('{"a":{"0":-1}}')


def test_partitions_are_named_once() -> None:
    assert partitions_from_text('{"a":[1,0]}') == {A0, A1}
    for text in ('{"a":[0,0]}', '{"a":[true]}', '{"a":0}', '{"a":[2147483648]}'):
        with pytest.raises(OffsetsInvalid):
            partitions_from_text(text)


def test_a_checkpoint_has_no_open_offsets() -> None:
    """-1 and -2 are for options: a batch that ended at "latest" could not be replayed."""
    with pytest.raises(OffsetsInvalid, match="out of bounds"):
        offsets_from_document({"a": {"0": -1}})


def test_a_checkpoint_of_the_connector_is_read() -> None:
    found = source_offset_from_document({"a": {"0": 23}})
    assert found == SourceOffset(positions={A0: Offset(23)})


def test_what_we_add_hides_in_the_name_of_an_empty_topic() -> None:
    offset = SourceOffset(
        positions={A0: Offset(23)},
        begins={A0: Offset(20)},
        topic_ids={"a": SOME_ID},
        is_initial=True,
    )
    document = document_from_source_offset(offset)
    plain, reserved = document
    assert document[plain] == {"0": 23}
    assert document[reserved] == {}
    assert not is_topic_name(reserved)
    assert json.loads(reserved.removeprefix(RESERVED_PREFIX)) == {
        "v": 1,
        "initial": True,
        "begins": {"a": {"0": 20}},
        "ids": {"a": "ABEiM0RVZneImaq7zN3u_w"},
    }
    # A line copied from a checkpoint into startingOffsets works.
    assert offsets_from_text(json.dumps(document)) == {A0: 23}


def test_no_topic_is_taken_for_the_reserved_key() -> None:
    """Nor the other way round: the name is in checkpoints and never changes."""
    document = {"millstream": {"0": 1}, '#millstream {"v":1,"initial":true}': {}}
    found = source_offset_from_document(document)
    assert found == SourceOffset(
        positions={TopicPartition("millstream", 0): Offset(1)}, is_initial=True
    )
    assert not is_topic_name(RESERVED_PREFIX[0])


def test_without_extras_the_text_is_the_connectors() -> None:
    assert document_from_source_offset(SourceOffset(positions={A0: Offset(1)})) == {"a": {"0": 1}}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("{", "malformed"),
        ("{}", "malformed"),
        ("7", "malformed"),
        ('{"v":1,"begins":[]}', "not a JSON object"),
        ('{"v":1,"begins":{"a":{"0":-1}}}', "out of bounds"),
        ('{"v":1,"ids":{"a":"short"}}', "malformed"),
        ('{"v":1,"ids":{"a":7}}', "malformed"),
        ('{"v":2}', "newer Millstream"),
    ],
)
def test_a_malformed_reserved_key_is_refused(key: str, told: str) -> None:
    with pytest.raises(OffsetsInvalid, match=told):
        source_offset_from_document({"a": {"0": 1}, RESERVED_PREFIX + key: {}})


def test_additions_of_the_same_version_are_ignored() -> None:
    found = source_offset_from_document({RESERVED_PREFIX + '{"v":1,"more":5}': {}})
    assert found == SourceOffset(positions={})


def test_two_reserved_keys_are_refused() -> None:
    document: dict[str, object] = {
        RESERVED_PREFIX + '{"v":1}': {},
        RESERVED_PREFIX + '{"v":1,"initial":true}': {},
    }
    with pytest.raises(OffsetsInvalid, match="more than one"):
        source_offset_from_document(document)
