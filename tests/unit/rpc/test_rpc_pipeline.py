"""The pure part: frames, order, deadlines, buffers."""

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.rpc.backoff import Attempts, Backoff
from millstream.rpc.errors import PeerViolation, UnsupportedApiVersion
from millstream.rpc.pipeline import BUFFER_BYTES, Pipeline
from millstream.rpc.versions import PeerApis, RetryWithVersion, highest_common, read_api_versions
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import decode_request_header
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millstream.wire.primitives import MalformedFrame

LIST_OFFSETS_V1 = (ApiKey.LIST_OFFSETS, 1)
METADATA_V12 = (ApiKey.METADATA, 12)


def pipeline(response_bytes_max: int = 10_000_000) -> Pipeline[Any]:
    return Pipeline(client_id="me", response_bytes_max=response_bytes_max)


def begin(pipe: Pipeline[Any], owner: object, *, deadline_s: float = 1.0) -> int:
    """The correlation id of a new request with a plain header."""
    parts = pipe.begin(*LIST_OFFSETS_V1, [b"body"], deadline_s=deadline_s, owner=owner)
    header, _ = decode_request_header(b"".join(parts)[4:])
    return header.correlation_id


def feed(pipe: Pipeline[Any], data: bytes, step: int = 1 << 30) -> list[tuple[object, bytes]]:
    """Hand over bytes in parts, as a transport does; (owner, body) of the answers."""
    told = []
    while data:
        room = pipe.writable()
        size = min(len(room), len(data), step)
        room[:size] = data[:size]
        pipe.received(size)
        data = data[size:]
        while (answer := pipe.next_response()) is not None:
            told.append((answer.request.owner, bytes(answer.body)))
    return told


def answer(correlation_id: int, body: bytes) -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body


def test_a_request_is_one_frame_with_its_header() -> None:
    pipe = pipeline()
    parts = pipe.begin(
        *METADATA_V12, [b"a", bytearray(b"bc"), memoryview(b"def")], deadline_s=1, owner=None
    )
    frame = b"".join(parts)
    assert frame[:4] == pack(">i", len(frame) - 4)
    header, position = decode_request_header(frame[4:])
    assert header == (ApiKey.METADATA, 12, 0, "me")
    assert frame[4 + position :] == b"abcdef"


def test_requests_without_an_answer_are_not_waited_for() -> None:
    pipe = pipeline()
    pipe.begin_without_response(ApiKey.PRODUCE, 9, [b"x"])
    number = begin(pipe, "next")
    assert (number, pipe.in_flight) == (1, 1)
    assert feed(pipe, answer(1, b"!")) == [("next", b"!")]


def test_correlation_ids_stay_positive_when_they_wrap() -> None:
    pipe = pipeline()
    pipe._next_correlation_id = 2**31 - 1
    assert [begin(pipe, n) for n in range(2)] == [2**31 - 1, 0]


@given(
    st.lists(st.integers(0, 3000) | st.integers(0, 300_000), max_size=8), st.integers(1, 100_000)
)
def test_answers_come_whole_in_order_however_the_bytes_are_cut(sizes: list[int], step: int) -> None:
    pipe = pipeline()
    bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
    sent = b"".join(answer(begin(pipe, n), body) for n, body in enumerate(bodies))
    assert feed(pipe, sent, max(step, len(sent) // 2000)) == list(enumerate(bodies))
    assert pipe.in_flight == 0


def test_an_answer_keeps_its_bytes_while_others_come() -> None:
    """The view may be kept: no later answer is written over it."""
    pipe = pipeline()
    kept = []
    for n in range(500):
        data = answer(begin(pipe, n), bytes([n % 256]) * 1000)
        while data:
            room = pipe.writable()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            pipe.received(size)
            data = data[size:]
        told = pipe.next_response()
        assert told is not None
        kept.append(told.body)
    for n, body in enumerate(kept):
        assert body.readonly
        assert body == bytes([n % 256]) * 1000


def test_a_claimed_size_reserves_nothing() -> None:
    pipe = pipeline(response_bytes_max=100_000_000)
    begin(pipe, "large")
    feed(pipe, pack(">i", 90_000_000) + b"x" * 100)
    assert len(pipe._buffer) == BUFFER_BYTES
    feed(pipe, b"x" * 500_000)
    assert len(pipe._buffer) <= 4 * 500_104


def test_a_large_answer_is_copied_little() -> None:
    """Buffers grow by factors, so a 40 MB answer costs a handful of them."""
    pipe = pipeline(response_bytes_max=100_000_000)
    number = begin(pipe, "large")
    buffers = set()
    data = answer(number, bytes(40_000_000))
    at = 0
    while at < len(data):
        room = pipe.writable()
        buffers.add(id(pipe._buffer))
        size = min(len(room), 65_536, len(data) - at)
        room[:size] = data[at : at + size]
        pipe.received(size)
        at += size
    told = pipe.next_response()
    assert told is not None
    assert len(told.body) == 40_000_000
    assert len(buffers) <= 8


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3, 1001, 2**31 - 1])
def test_a_bad_frame_size_is_a_violation(size: int) -> None:
    pipe = pipeline(response_bytes_max=1000)
    begin(pipe, "x")
    with pytest.raises(PeerViolation, match=str(size)):
        feed(pipe, pack(">i", size))


def test_the_answer_of_another_request_is_a_violation_and_its_owner_still_waits() -> None:
    pipe = pipeline()
    first = begin(pipe, "first")
    second = begin(pipe, "second")
    with pytest.raises(PeerViolation, match=f"correlation id {second}, expected {first}"):
        feed(pipe, answer(second, b"!"))
    assert [one.owner for one in pipe.abandon()] == ["first", "second"]


def test_an_answer_nobody_waits_for_is_a_violation() -> None:
    with pytest.raises(PeerViolation, match="without a request"):
        feed(pipeline(), answer(0, b""))


def test_a_header_that_cannot_be_read_is_a_violation() -> None:
    pipe = pipeline()
    pipe.begin(*METADATA_V12, [b""], deadline_s=1, owner="x")
    with pytest.raises(PeerViolation, match="header"):
        feed(pipe, pack(">ii", 5, 0) + b"\xff")
    assert pipe.in_flight == 1


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(1, 20))
def test_any_bytes_are_answers_or_a_violation(data: bytes, waiting: int, step: int) -> None:
    pipe = pipeline(response_bytes_max=1000)
    for n in range(waiting):
        begin(pipe, n)
    try:
        told = feed(pipe, data, step)
    except PeerViolation:
        return
    assert len(told) + pipe.in_flight == waiting


def test_the_first_deadline_is_not_always_that_of_the_first_request() -> None:
    pipe = pipeline()
    assert pipe.next_deadline_s() == float("inf")
    first = begin(pipe, "a", deadline_s=10)
    begin(pipe, "b", deadline_s=5)
    assert pipe.next_deadline_s() == 5
    feed(pipe, answer(first, b""))
    assert pipe.next_deadline_s() == 5


# -- versions --------------------------------------------------------------------------------------


def served(*ranges: tuple[int, int, int]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges
        ]
    )


def test_the_highest_common_version_is_chosen() -> None:
    ours = APIS[ApiKey.METADATA].versions
    apis = PeerApis(served((ApiKey.METADATA, 0, 9), (999, 0, 3), (ApiKey.FETCH, 4, 30_000)))
    assert apis.choose(ApiKey.METADATA) == 9
    assert apis.choose(ApiKey.METADATA, range(1, 6)) == 5
    assert apis.choose(ApiKey.METADATA, range(1, 100)) == 9
    assert apis.choose(ApiKey.METADATA) == 9
    assert apis.choose(ApiKey.FETCH) == APIS[ApiKey.FETCH].versions[-1]
    with pytest.raises(UnsupportedApiVersion, match="METADATA: 10 to") as failure:
        apis.choose(ApiKey.METADATA, range(10, 100))
    assert failure.value.theirs == range(10)
    assert failure.value.ours == range(10, ours.stop)
    assert not failure.value.may_have_been_processed
    with pytest.raises(UnsupportedApiVersion, match="the peer has none"):
        apis.choose(ApiKey.PRODUCE)


@given(st.integers(-5, 20), st.integers(-5, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_chosen_version_is_in_all_ranges(low: int, high: int, start: int, stop: int) -> None:
    theirs, allowed = range(low, high + 1), range(start, stop)
    ours = APIS[ApiKey.METADATA].versions
    common = [one for one in ours if one in theirs and one in allowed]
    if common:
        assert highest_common(ApiKey.METADATA, allowed, theirs) == max(common)
    else:
        with pytest.raises(UnsupportedApiVersion):
            highest_common(ApiKey.METADATA, allowed, theirs)


def test_an_unknown_version_is_asked_again_with_one_that_is_known() -> None:
    told = served((ApiKey.API_VERSIONS, 0, 2))
    told.error_code = ErrorCode.UNSUPPORTED_VERSION
    assert read_api_versions(told.encode(0), 4) == RetryWithVersion(2)
    assert read_api_versions(told.encode(0), 2) == RetryWithVersion(1)  # it always gets lower
    told = served()
    told.error_code = ErrorCode.UNSUPPORTED_VERSION
    assert read_api_versions(told.encode(0), 4) == RetryWithVersion(0)
    with pytest.raises(PeerViolation, match="35"):
        read_api_versions(told.encode(0), 0)


def test_a_bad_list_of_versions_is_an_error() -> None:
    response = served((3, 0, 1))
    assert read_api_versions(response.encode(3), 3) == response
    response.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(PeerViolation):
        read_api_versions(response.encode(3), 3)
    for body in (b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\0\x23\xff"):
        with pytest.raises(MalformedFrame):
            read_api_versions(body, 3)


# -- back-off --------------------------------------------------------------------------------------


@given(st.integers(0, 5000), st.integers(0, 100))
def test_delays_grow_to_a_limit_with_jitter(failures: int, seed: int) -> None:
    backoff = Backoff(initial_s=0.1, max_s=5.0, factor=2.0, jitter=0.2)
    delay_s = backoff.delay_s(failures, SeededRandomness(seed))
    plain_s = 0.0 if failures == 0 else min(5.0, 0.1 * 2.0 ** min(failures - 1, 30))
    assert 0.8 * plain_s <= delay_s <= min(5.0, 1.2 * plain_s)


def test_delays_differ_between_clients() -> None:
    delays_s = {Backoff().delay_s(3, SeededRandomness(seed)) for seed in range(20)}
    assert len(delays_s) == 20


def test_attempts_wait_after_failures_and_not_after_success() -> None:
    attempts = Attempts(Backoff(initial_s=1, max_s=100, jitter=0), SeededRandomness(1))
    assert attempts.wait_s(now_s=0) == 0
    attempts.record_failure(now_s=10)
    assert attempts.wait_s(now_s=10.25) == 0.75
    attempts.record_failure(now_s=11)
    assert attempts.wait_s(now_s=11) == 2
    assert attempts.wait_s(now_s=50) == 0
    attempts.record_success()
    assert attempts.wait_s(now_s=11) == 0
    attempts.record_failure(now_s=60)
    assert attempts.wait_s(now_s=60) == 1
