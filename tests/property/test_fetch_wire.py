"""Fetch's lean codec says the same as the generic one, for every version."""

import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kits.kernels.kernel_twins import compiled, needs_compiled, twins
from millstream.broker.fetch import request as fetch_request
from millstream.broker.fetch import response as fetch_response
from millstream.broker.fetch.cursors import Cursor, Found
from millstream.broker.fetch.request import FetchParams, decode
from millstream.broker.fetch.response import Hints, encode, encode_frame
from millstream.broker.fetch.sessions import RoundAnswer
from millstream.broker.requests.advertised_brokers import LeaderHint
from millstream.model.ids import Offset, ProducerId
from millstream.storage.log.reader import ReadSlice
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import encode_response_header
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from millstream.wire.primitives import MalformedFrame

VERSIONS = range(4, 19)


@pytest.fixture(scope="module", autouse=True, params=twins("fetch"))
def kernel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Everything here holds with and without the compiled kernel."""
    with mock.patch.object(fetch_request, "parse", request.param.parse):
        yield request.param


int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=200)
ids = st.uuids()
counts = st.integers(0, 2**31 - 1)


@st.composite
def requests(draw: st.DrawFn, version: int) -> FetchRequest:
    """A request with the fields that the version has; tagged ones now and then."""
    request = FetchRequest(
        max_wait_ms=draw(int32s),
        min_bytes=draw(int32s),
        max_bytes=draw(int32s),
        isolation_level=draw(st.integers(-128, 127)),
    )
    if version < 15:
        request.replica_id = draw(int32s)
    elif draw(st.booleans()):
        request.replica_state = ReplicaState(replica_id=draw(int32s), replica_epoch=draw(int64s))
    if version >= 7:
        request.session_id, request.session_epoch = draw(int32s), draw(int32s)
    if version >= 11:
        request.rack_id = draw(names)
    if version >= 12 and draw(st.booleans()):
        request.cluster_id = draw(names)
    for _ in range(draw(st.integers(0, 3))):
        topic = FetchTopic(topic=draw(names), topic_id=draw(ids))
        topic.partitions = draw(st.lists(partitions(version), max_size=3))
        request.topics.append(topic)
    if version >= 7:
        for _ in range(draw(st.integers(0, 2))):
            topics = ForgottenTopic(topic=draw(names), topic_id=draw(ids))
            topics.partitions = draw(st.lists(int32s, max_size=3))
            request.forgotten_topics_data.append(topics)
    if version >= 12 and draw(st.booleans()):
        request.unknown_tags = {99: b"later"}
    return request


@st.composite
def partitions(draw: st.DrawFn, version: int) -> FetchPartition:
    one = FetchPartition(
        partition=draw(int32s), fetch_offset=draw(int64s), partition_max_bytes=draw(int32s)
    )
    if version >= 5:
        one.log_start_offset = draw(int64s)
    if version >= 9:
        one.current_leader_epoch = draw(int32s)
    if version >= 12:
        one.last_fetched_epoch = draw(int32s)
    if version >= 17 and draw(st.booleans()):
        one.replica_directory_id = draw(ids)
    if version >= 18 and draw(st.booleans()):
        one.high_watermark = draw(int64s)
    return one


def expected(raw: bytes, version: int) -> FetchParams:
    """What the generic codec reads, in the lean shape."""
    request = FetchRequest.decode(memoryview(raw), version)

    def key(topic: Any) -> str | bytes:
        found = topic.topic_id.bytes if version >= 13 else topic.topic
        assert isinstance(found, str | bytes)
        return found

    return FetchParams(
        version,
        request.replica_state.replica_id if version >= 15 else request.replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                key(topic),
                one.partition,
                one.current_leader_epoch,
                one.fetch_offset,
                one.last_fetched_epoch,
                one.log_start_offset,
                one.partition_max_bytes,
            )
            for topic in request.topics
            for one in topic.partitions
        ],
        [
            (key(topic), index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ],
        request.rack_id,
        request.replica_state.replica_epoch if version >= 15 else -1,
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_lean_decoder_reads_what_the_generic_one_reads(
    version: int, data: st.DataObject
) -> None:
    raw = data.draw(requests(version)).encode(version)
    assert decode(memoryview(raw), version) == expected(raw, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_consumers_send_does_not_need_the_generic_decoder(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = FetchTopic(topic="t", topic_id=UUID(int=7))
    topic.partitions = [FetchPartition(partition=index, fetch_offset=5) for index in range(3)]
    raw = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic]).encode(version)
    wanted = expected(raw, version)
    monkeypatch.delattr(fetch_request, "_decode_any")
    assert decode(memoryview(raw), version) == wanted


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_damaged_requests_are_refused_by_both_or_read_alike(
    version: int, data: st.DataObject
) -> None:
    """Any bytes either decode or raise MalformedFrame."""
    raw = bytearray(data.draw(requests(version)).encode(version))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        match data.draw(st.sampled_from(["cut", "flip", "add"])):
            case "cut":
                del raw[at:]
            case "add":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=6))
            case _ if at < len(raw):
                raw[at] = data.draw(st.integers(0, 255))
    try:
        wanted = expected(bytes(raw), version)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            decode(memoryview(bytes(raw)), version)
    else:
        assert decode(memoryview(bytes(raw)), version) == wanted


@given(raw=st.binary(max_size=80), version=st.sampled_from(VERSIONS))
@example(raw=b"\xff" * 80, version=17)
@settings(max_examples=100, deadline=None)
def test_junk_is_malformed_or_a_request(raw: bytes, version: int) -> None:
    try:
        decode(memoryview(raw), version)
    except MalformedFrame:
        return
    expected(raw, version)


# -- answers -------------------------------------------------------------------------------------


class _Bytes(ReadSlice):
    """A range with its bytes at hand."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        super().__init__(object() if content else None, 0, len(content))  # type: ignore[arg-type]
        self.content = content


@st.composite
def found_by(draw: st.DrawFn, version: int) -> Found:
    topic: str | bytes = draw(ids).bytes if version >= 13 else draw(names)
    cursor = Cursor((topic, draw(int32s), -1, 0, -1, -1, 0))
    aborted = st.builds(
        AbortedTransaction,
        st.builds(ProducerId, int64s),
        st.builds(Offset, int64s),
        st.builds(Offset, int64s),
        st.builds(Offset, int64s),
    )
    diverging = st.tuples(st.integers(0, 2**31 - 1), int64s) if version >= 12 else st.none()
    return Found(
        cursor,
        draw(st.integers(-1, 130)),
        draw(int64s),
        draw(int64s),
        draw(int64s),
        draw(st.none() | st.lists(aborted, max_size=3)),
        _Bytes(draw(st.binary(max_size=300))),
        draw(st.none() | diverging),
    )


@st.composite
def answers(draw: st.DrawFn, version: int) -> tuple[RoundAnswer, Hints]:
    found = draw(st.lists(found_by(version), max_size=4))
    session = draw(int32s) if version >= 7 else 0
    error = draw(st.sampled_from([0, 1, 70, 71])) if version >= 7 else 0
    hints: Hints = {}
    if version >= 16:
        for one in found:
            if draw(st.booleans()):
                hints[one.cursor.key] = LeaderHint(
                    draw(counts),
                    draw(counts),
                    draw(st.none() | names),
                    9092,
                    draw(st.none() | names),
                )
    return RoundAnswer(ErrorCode(error), session, found), hints


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_lean_encoder_writes_what_the_generic_one_reads(
    version: int, data: st.DataObject
) -> None:
    answer, hints = data.draw(answers(version))
    raw = b"".join(
        part.content if isinstance(part, _Bytes) else bytes(part)  # type: ignore[arg-type]
        for part in encode(version, answer, hints)
    )
    response = FetchResponse.decode(memoryview(raw), version)
    assert response.encode(version) == raw, "the same bytes as the generic encoder"
    assert (response.error_code, response.session_id) == (answer.error, answer.session_id)
    listed = [
        (topic.topic_id.bytes if version >= 13 else topic.topic, one)
        for topic in response.responses
        for one in topic.partitions
    ]
    assert len(listed) == len(answer.found)
    for (topic, one), wanted in zip(listed, answer.found, strict=True):
        assert (topic, one.partition_index) == wanted.cursor.key
        assert one.error_code == wanted.error
        assert (one.high_watermark, one.last_stable_offset) == wanted[2:4]
        assert one.log_start_offset == (wanted.log_start if version >= 5 else -1)
        assert one.records == wanted.data.content  # type: ignore[attr-defined]
        aborted = one.aborted_transactions
        assert (aborted is None) == (wanted.aborted is None)
        assert [(each.producer_id, each.first_offset) for each in aborted or []] == [
            (each.producer_id, each.first_offset) for each in wanted.aborted or []
        ]
        diverging = one.diverging_epoch.epoch, one.diverging_epoch.end_offset
        assert diverging == (wanted.diverging or (-1, -1))
        hint = hints.get(wanted.cursor.key)
        leader = one.current_leader
        expected_leader = (hint.leader_id, hint.leader_epoch) if hint else (-1, -1)
        assert (leader.leader_id, leader.leader_epoch) == expected_leader
    nodes = {hint.leader_id: hint.host for hint in hints.values() if hint.host is not None}
    assert {node.node_id: node.host for node in response.node_endpoints} == nodes


def test_neighbours_of_one_topic_share_its_name() -> None:
    def one(topic: str, index: int) -> Found:
        cursor = Cursor((topic, index, -1, 0, -1, -1, 0))
        return Found(cursor, 0, 1, 1, 0, None, _Bytes(b""))

    found = [one("a", 0), one("a", 1), one("b", 0), one("a", 2)]
    raw = b"".join(encode(12, RoundAnswer(ErrorCode.NONE, 0, found)))  # type: ignore[arg-type]
    response = FetchResponse.decode(memoryview(raw), 12)
    listed = [(topic.topic, len(topic.partitions)) for topic in response.responses]
    assert listed == [("a", 2), ("b", 1), ("a", 1)]
    assert UUID(int=0) == response.responses[0].topic_id


def _compiled() -> Any:
    return compiled("fetch")


def _joined(parts: list[Any]) -> bytes:
    return b"".join(part.content if isinstance(part, _Bytes) else bytes(part) for part in parts)


@needs_compiled("fetch")
@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_kernel_writes_the_same_frame(version: int, data: st.DataObject) -> None:
    answer, _ = data.draw(answers(version))
    expected_body = _joined(encode(version, answer))
    for one in answer.found:
        if data.draw(st.booleans()) and one.data.file is not None:
            one.data.raw = one.data.content  # type: ignore[attr-defined]
            one.data.file = None
    assert _joined(encode(version, answer)) == expected_body
    correlation_id = data.draw(int32s)
    with mock.patch.object(fetch_response, "answer_frame", _compiled().answer_frame):
        made = encode_frame(version, correlation_id, answer)
    if made is None:
        assert any(one.aborted or one.diverging for one in answer.found)
        return
    parts, size = made
    frame = _joined(parts)
    header = encode_response_header(ApiKey.FETCH, version, correlation_id)
    assert frame == size.to_bytes(4, "big") + header + expected_body
    assert not any(isinstance(part, _Bytes) and part.raw for part in parts)


@needs_compiled("fetch")
@pytest.mark.parametrize("version", VERSIONS)
def test_what_consumers_send_is_read_by_the_kernel(version: int) -> None:
    topic = FetchTopic(topic="t", topic_id=UUID(int=7))
    topic.partitions = [FetchPartition(partition=index, fetch_offset=5) for index in range(3)]
    raw = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic]).encode(version)
    assert _compiled().parse(memoryview(raw), version) == tuple(expected(raw, version))


# -- cursors -------------------------------------------------------------------------------------

small = st.integers(-1, 3)
asked = st.tuples(
    st.just("t"), st.integers(0, 9), small, small, small, small, st.integers(0, 2**31 - 1)
)


@pytest.mark.parametrize("twin", twins("fetch"))
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_cursor_moved_unless_everything_is_as_it_was_told(twin: Any, data: st.DataObject) -> None:
    """One that is left out wrongly would never get its records."""
    package = twin.__name__.rpartition(".")[0]
    slots = importlib.import_module(f"{package}.slots")
    cursors, wanted = [], []
    for _ in range(data.draw(st.integers(0, 6))):
        cursor = twin.Cursor(data.draw(asked))
        slot = slots.PartitionSlot(None)
        slot.high_watermark, slot.log_start = data.draw(small), data.draw(small)
        if data.draw(st.booleans()):
            cursor.slot = slot
        cursor.sent_high_watermark, cursor.sent_log_start = data.draw(small), data.draw(small)
        if data.draw(st.booleans()):
            cursor.visible_end = data.draw(small)
        is_told = (
            cursor.fetch_offset == cursor.visible_end
            and slot.high_watermark == cursor.sent_high_watermark
            and slot.log_start == cursor.sent_log_start
        )
        cursors.append(cursor)
        if cursor.slot is None or not is_told:
            wanted.append(cursor)
    assert twin.cursors_to_read(cursors) == wanted
    for cursor in cursors:
        question = data.draw(asked)
        cursor.update(question)
        assert (cursor.current_leader_epoch, cursor.fetch_offset) == question[2:4]
        assert (cursor.last_fetched_epoch, cursor.max_bytes) == (question[4], question[6])
        assert cursor.visible_end == twin.UNKNOWN
