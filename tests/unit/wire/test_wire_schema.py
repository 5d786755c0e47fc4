"""Messages as Python objects, what a version can carry, and bytes written down by hand."""

from functools import partial
from uuid import UUID

import pytest

from millstream.wire import values
from millstream.wire.fields import Kind, int32
from millstream.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from millstream.wire.messages.fetch import FetchRequest, FetchTopic
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message
from millstream.wire.values import ArrayForm, TooManyItems, number_array_reader, read_within

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


# -- objects -----------------------------------------------------------------------------------


def test_defaults_are_kafkas_and_not_shared() -> None:
    one, other = MetadataResponse(), MetadataResponse()
    assert (one.controller_id, one.cluster_id, one.throttle_time_ms) == (-1, None, 0)
    one.topics.append(MetadataResponseTopic())
    assert other.topics == []
    assert MetadataResponseTopic().topic_authorized_operations == -(2**31)
    assert FetchRequest().replica_state.replica_id == -1
    assert FetchRequest().replica_state is not FetchRequest().replica_state


def test_equal_by_value() -> None:
    assert MetadataRequest(topics=None) == MetadataRequest(topics=None)
    assert MetadataRequest(topics=None) != MetadataRequest(topics=[])
    assert MetadataRequest() != MetadataRequest(unknown_tags={7: b""})
    assert MetadataRequest() != ListGroupsRequest()


def test_only_declared_fields() -> None:
    with pytest.raises(TypeError, match="topicz"):
        MetadataRequest(topicz=[])  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequest().topicz = []  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(MetadataRequest())


def test_shown_without_defaults_and_without_secrets() -> None:
    """Messages end up in logs; byte strings carry passwords and tokens."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    assert repr(request) == "MetadataRequest(topics=[MetadataRequestTopic(name='a')])"
    for secret in (b"hunter2", memoryview(b"hunter2"), bytearray(b"hunter2")):
        shown = repr(SaslAuthenticateRequest(auth_bytes=secret))
        assert shown == "SaslAuthenticateRequest(auth_bytes=<7 bytes>)"
    assert repr(MetadataRequest(unknown_tags={9: b"hunter2"})).endswith("(unknown_tags=[9])")


def test_a_message_without_an_api_names_its_versions() -> None:
    class Inner(Message, versions="1-3", flexible_from=2):
        number: int = int32("2+", ignorable=True)

    assert range(1, 4) == Inner.VERSIONS
    assert [Inner(number=5).encode(version).hex() for version in Inner.VERSIONS] == [
        "",
        "0000000500",
        "0000000500",
    ]


# -- what a version can carry ------------------------------------------------------------------


def test_a_field_the_version_lacks_must_hold_its_default() -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    assert request.encode(4)
    with pytest.raises(ValueError, match=r"allow_auto_topic_creation is set.*MetadataRequest v3"):
        request.encode(3)
    with pytest.raises(ValueError, match="include_cluster_authorized_operations"):
        MetadataRequest(include_cluster_authorized_operations=True).encode(11)


def test_an_ignorable_field_is_left_out() -> None:
    """An answer is built once, for whatever version the client speaks."""
    full = MetadataResponse(throttle_time_ms=5, cluster_id="c", controller_id=1)
    assert MetadataResponse.decode(full.encode(0), 0) == MetadataResponse()
    assert MetadataResponse.decode(full.encode(2), 2).cluster_id == "c"


def test_null_needs_a_version_with_null() -> None:
    assert MetadataRequest(topics=None).encode(1) == b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match=r"topics is null.*v0"):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(ValueError, match="name is null"):
        MetadataRequest(topics=[MetadataRequestTopic(name=None)]).encode(9)


def test_null_is_refused_by_a_version_without_null() -> None:
    with pytest.raises(MalformedFrame, match="MetadataRequest v0"):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0)
    with pytest.raises(MalformedFrame, match="MetadataResponse v12"):
        MetadataResponse.decode(b"\0\0\0\0\0", 12)


def test_numbers_must_fit() -> None:
    with pytest.raises(ValueError, match="MetadataResponse v3"):
        MetadataResponse(throttle_time_ms=2**31).encode(3)
    with pytest.raises(ValueError, match="32768 bytes"):
        MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]).encode(9)


def test_a_count_is_compared_with_the_bytes_before_an_item_is_read() -> None:
    """By the least an item can take: 16 for the id, one each for name and tags."""
    with pytest.raises(MalformedFrame, match="array of 2147483647 items in 3 bytes at byte 4"):
        MetadataRequest.decode(b"\x7f\xff\xff\xff\0\0\0", 8)
    with pytest.raises(MalformedFrame, match="array of 2 items in 35 bytes"):
        MetadataRequest.decode(b"\x03" + bytes(35), 12)
    read_numbers = number_array_reader(ArrayForm(is_compact=True, may_be_null=False), Kind.INT32)
    assert read_numbers(memoryview(b"\x02\0\0\0\x05"), 0) == ([5], 5)
    with pytest.raises(MalformedFrame, match="array of 2 items in 7 bytes"):
        read_numbers(memoryview(b"\x03" + bytes(7)), 0)


def test_a_message_has_a_limit_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all its arrays; and it is per message, not for good."""
    monkeypatch.setattr(values, "MESSAGE_ITEMS_MAX", 100)
    topics = [CreatableTopic(configs=[CreatableTopicConfig()] * 9)] * 10
    for _ in range(3):
        CreateTopicsRequest.decode(CreateTopicsRequest(topics=topics).encode(7), 7)
    topics.append(CreatableTopic())
    with pytest.raises(MalformedFrame, match="more than 100 items in one message"):
        CreateTopicsRequest.decode(CreateTopicsRequest(topics=topics).encode(7), 7)


def test_who_cannot_wait_learns_early_that_a_message_is_large() -> None:
    """And decodes it elsewhere: the lower limit is for the one try."""
    raw = MetadataRequest(topics=[MetadataRequestTopic(name="x")] * 50).encode(9)
    read = partial(MetadataRequest.decode, raw, 9)
    assert len(read_within(50, read).topics or ()) == 50
    with pytest.raises(TooManyItems, match="more than 49 items in one message"):
        read_within(49, read)
    assert len(read().topics or ()) == 50


def test_numbers_count_too_if_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 32 bytes of memory and came in four."""
    monkeypatch.setattr(values, "MESSAGE_ITEMS_MAX", 100)
    read_numbers = number_array_reader(ArrayForm(is_compact=False, may_be_null=False), Kind.INT32)
    for count, is_fine in ((800, True), (900, False)):
        values.begin_message()
        raw = memoryview(count.to_bytes(4, "big") + bytes(4 * count))
        if is_fine:
            assert len(read_numbers(raw, 0)[0]) == count
        else:
            with pytest.raises(TooManyItems):
                read_numbers(raw, 0)


def test_a_version_outside_the_range_is_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="MetadataRequest has no version 14"):
        MetadataRequest().encode(14)
    with pytest.raises(ValueError, match="ProduceRequest has no version 2"):
        ProduceRequest.decode(b"", 2)


def test_bytes_fields_are_views() -> None:
    frame = bytearray(SaslAuthenticateRequest(auth_bytes=b"abc").encode(2))
    decoded = SaslAuthenticateRequest.decode(frame, 2)
    frame[1] = ord("z")
    assert decoded.auth_bytes == b"zbc"


# -- tagged fields -----------------------------------------------------------------------------


def fetch(tags: bytes, version: int = 15) -> FetchRequest:
    """An empty Fetch with other tagged fields."""
    plain = FetchRequest().encode(version)
    assert plain.endswith(b"\x00")
    return FetchRequest.decode(plain[:-1] + tags, version)


def test_known_tags_are_fields_and_unknown_ones_are_kept() -> None:
    state = b"\0\0\0\x07\0\0\0\0\0\0\0\x09\0"
    request = fetch(b"\x03\x00\x02\x02c\x01\x0d" + state + b"\x63\x02hi")
    assert request.cluster_id == "c"
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 9)
    assert request.unknown_tags == {0x63: b"hi"}
    assert fetch(b"\x00") == FetchRequest()
    assert FetchRequest.decode(request.encode(15), 15) == request


def test_a_tag_of_a_later_version_is_kept_as_unknown() -> None:
    assert fetch(b"\x01\x01\x02hi", version=12).unknown_tags == {1: b"hi"}


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        (b"\x02\x63\x00\x63\x00", "tag 99 after 99"),
        (b"\x02\x63\x00\x62\x00", "tag 98 after 99"),
        (b"\x02\x00\x02\x02c\x00\x02\x02c", "tag 0 after 0"),
        (b"\x01\x00\x03\x02cc", "uses 2 of its 3"),
        (b"\x01\x00\x02\x03cc", "string of 2 bytes in 1"),
        (b"\x01\x63\x09hi", "tag 99 of 9 bytes in 2"),
        (b"\xff\xff\xff\xff\x0f", "4294967295 tagged fields in 0 bytes"),
        (b"\x05\x63\x00\x64\x00", "5 tagged fields in 4 bytes"),
    ],
)
def test_bad_tags_are_malformed(tags: bytes, told: str) -> None:
    with pytest.raises(MalformedFrame, match=told):
        fetch(tags)


def test_tags_need_a_flexible_version() -> None:
    strange = MetadataRequest(unknown_tags={7: b""})
    assert strange.encode(9)
    with pytest.raises(ValueError, match="cannot carry tagged fields"):
        strange.encode(8)


def test_a_kept_tag_gives_way_to_the_field_of_that_number() -> None:
    """A tag kept from an old version must not stand in for a field that a newer one knows."""
    request = FetchRequest(unknown_tags={0: b"junk", 50: b"kept"})
    back = FetchRequest.decode(request.encode(12), 12)
    assert (back.cluster_id, dict(back.unknown_tags)) == (None, {50: b"kept"})


# -- by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "version", "raw"),
    [
        (ApiVersionsRequest(), 0, ""),
        (
            ApiVersionsRequest(client_software_name="kc", client_software_version="1"),
            3,
            "03 6b63 02 31 00",
        ),
        (
            ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)]),
            0,
            "0000 00000001 0012 0000 0004",
        ),
        (
            ApiVersionsResponse(
                api_keys=[ApiVersion(api_key=18, max_version=4)],
                supported_features=[SupportedFeatureKey(name="f", max_version=2)],
                finalized_features_epoch=5,
            ),
            3,
            "0000 02 0012 0000 0004 00 00000000 02 00 08 02 02 66 0000 0002 00 01 08"
            " 0000000000000005",
        ),
        (
            MetadataRequest(topics=[MetadataRequestTopic(name="ab")]),
            8,
            "00000001 0002 6162 01 00 00",
        ),
        (
            MetadataRequest(topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)]),
            12,
            "02 00112233445566778899aabbccddeeff 00 00 01 00 00",
        ),
        (
            DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name="a")],
                cursor=RequestCursor(topic_name="a", partition_index=3),
            ),
            0,
            "02 02 61 00 000007d0 01 02 61 00000003 00 00",
        ),
        (DescribeTopicPartitionsRequest(), 0, "01 000007d0 ff 00"),
        (
            FetchRequest(topics=[FetchTopic(topic="t")], max_wait_ms=1, min_bytes=2),
            4,
            "ffffffff 00000001 00000002 7fffffff 00 00000001 0001 74 00000000",
        ),
    ],
)
def test_bytes_by_hand(
    message: ApiVersionsRequest | MetadataRequest, version: int, raw: str
) -> None:
    expected = bytes.fromhex(raw)
    assert message.encode(version).hex(" ") == expected.hex(" ")
    assert type(message).decode(expected, version) == message


@pytest.mark.parametrize("marker", [0, 2, 0xFE])
def test_a_struct_is_there_or_null_and_nothing_else(marker: int) -> None:
    with pytest.raises(MalformedFrame, match="marker"):
        DescribeTopicPartitionsRequest.decode(b"\x01\0\0\0\0" + bytes([marker]) + b"\0", 0)
