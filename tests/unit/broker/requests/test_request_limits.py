"""I-34: how much one request can make a broker decode, for every array and tagged section there is.

The places come from the declarations of the messages, so an API, a version or a field that is
added later is in it without another word. Each is sent with as much as is allowed, and with one
item more, through the decoder that the dispatcher calls.
"""

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from kits.kernels.kernel_twins import compiled, needs_compiled, plain, twins
from kits.wire.request_sites import Shape, Site, items_in, request_with, sites_of
from kits.wire.wire_messages import Case
from millstream.broker.fetch import request as fetch_request
from millstream.broker.fetch.request import FetchParams
from millstream.broker.requests import registry
from millstream.broker.requests.registry import SERVED
from millstream.kernels.errors import FrameError
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import HEADER_TAGS_MAX, REQUEST_ITEMS_MAX
from millstream.wire import values
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import request_type
from millstream.wire.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.primitives import MalformedFrame, write_unsigned_varint
from millstream.wire.schema import Message, Struct
from millstream.wire.values import NO_TAGS, TooManyItems, read_within

FEW = 400
"""Stands for `REQUEST_ITEMS_MAX`, with which this would take minutes."""

KERNEL_ITEMS_MAX = 4_000
"""What the compiled kernel reads of a Fetch; larger ones are counted by the Python around it."""

MIB = 1024 * 1024


FETCH_VERSIONS = (4, 7, 12, 13, 18)
"""The first, and with sessions, flexible, with topic ids, the newest: all ways of the kernel."""


def sites(key: ApiKey, versions: Iterable[int]) -> Iterator[tuple[Site, Shape]]:
    for version in versions:
        for site in sites_of(Case(request_type(key), version)):
            for shape in site.shapes:
                yield site, shape


def count_at(site: Site, shape: Shape, items_max: int) -> int:
    """How many items at the site fill the request up."""
    version = site.case.version
    one, two = (items_in(request_with(site, shape, count), version) for count in (1, 2))
    return 1 + (items_max - one) // (two - one)


def kept(decoded: Any) -> int:
    """Items that a decoded request holds; none of them is a tagged field that nobody knows."""
    if isinstance(decoded, FetchParams):
        return len(decoded.partitions) + len(decoded.forgotten)
    assert decoded.unknown_tags is NO_TAGS
    count = 0
    for field in decoded.FIELDS:
        value = getattr(decoded, field.name)
        is_array = isinstance(value, list)
        count += len(value) if is_array else 0
        count += sum(kept(one) for one in (value if is_array else [value]) if is_struct(one))
    return count


def is_struct(value: Any) -> bool:
    return isinstance(value, Struct)


def check_sites(key: ApiKey, versions: Iterable[int], items_max: int) -> int:
    """Each at the limit, and beyond; how many there are."""
    handler, checked = registry.load(key), 0
    for site, shape in sites(key, versions):
        version, count = site.case.version, count_at(site, shape, items_max)
        largest = memoryview(request_with(site, shape, count).encode(version))
        assert kept(handler.decode(largest, version)) <= items_max, str(site)
        larger = memoryview(request_with(site, shape, count + 1).encode(version))
        with pytest.raises(TooManyItems, match=f"more than {items_max} items in one"):
            handler.decode(larger, version)
        checked += 1
    return checked


@pytest.mark.parametrize("key", sorted(set(SERVED) - {ApiKey.FETCH}), ids=lambda key: key.name)
def test_every_array_and_tagged_section_is_limited(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "REQUEST_ITEMS_MAX", FEW)
    assert check_sites(key, SERVED[key].versions, FEW)


def test_those_of_a_fetch_are_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "REQUEST_ITEMS_MAX", FEW)
    monkeypatch.setattr(fetch_request, "parse", plain("fetch").parse)
    assert check_sites(ApiKey.FETCH, SERVED[ApiKey.FETCH].versions, FEW)


@needs_compiled("fetch")
def test_those_of_a_fetch_are_with_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    items_max = KERNEL_ITEMS_MAX + 1
    kernel: Any = compiled("fetch")
    monkeypatch.setattr(values, "REQUEST_ITEMS_MAX", items_max)
    monkeypatch.setattr(fetch_request, "parse", kernel.parse)
    assert check_sites(ApiKey.FETCH, FETCH_VERSIONS, items_max)


def test_every_api_with_an_array_or_tags_is_in_it() -> None:
    """The table is made from the declarations: it must not come out empty by mistake."""
    count_by_key = {key: len(list(sites(key, one.versions))) for key, one in SERVED.items()}
    assert {key for key, count in count_by_key.items() if not count} == set()
    assert sum(count_by_key.values()) > 1_000


# -- with the real limit -------------------------------------------------------------------------


def elect_leaders(count: int) -> ElectLeadersRequest:
    topic = TopicPartitions(topic="t", partitions=list(range(count)))
    return ElectLeadersRequest(topic_partitions=[topic], timeout_ms=1)


def commit(count: int) -> OffsetCommitRequest:
    """The same partition again and again: what counts is what the broker makes of it."""
    partition = OffsetCommitRequestPartition(partition_index=7, committed_offset=9)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition] * count)
    return OffsetCommitRequest(group_id="g", topics=[topic])


def fetch(count: int) -> FetchRequest:
    topic = FetchTopic(topic="t", partitions=[FetchPartition(partition=7)] * count)
    return FetchRequest(topics=[topic])


def metadata_with_tags(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[], unknown_tags={7_000 + number: b"" for number in range(count)})


LARGEST: list[tuple[Callable[[int], Message], int]] = [
    (elect_leaders, 2),
    (commit, 8),
    (fetch, 12),
    (metadata_with_tags, 12),
]


@pytest.mark.parametrize(("make", "version"), LARGEST, ids=lambda one: getattr(one, "__name__", ""))
def test_a_request_may_name_every_partition_of_the_largest_clusters(
    make: Callable[[int], Message], version: int
) -> None:
    """With its one topic: 200,000 partitions, and more."""
    assert REQUEST_ITEMS_MAX > 200_000
    handler = registry.load(make(0).API_KEY)
    allowed = REQUEST_ITEMS_MAX - 1
    body = memoryview(make(allowed).encode(version))
    decoded = handler.decode(body, version)
    assert kept(decoded) in (0, allowed, allowed + 1)


@pytest.mark.parametrize(("make", "version"), LARGEST, ids=lambda one: getattr(one, "__name__", ""))
def test_a_count_beyond_the_limit_is_refused_before_anything_is_decoded(
    make: Callable[[int], Message], version: int
) -> None:
    """On the event loop after a thousand items, in a worker thread at the limit."""
    body = memoryview(make(REQUEST_ITEMS_MAX + 1).encode(version))
    read = partial(registry.load(make(0).API_KEY).decode, body, version)
    tracemalloc.start()
    try:
        for _ in range(2):
            with pytest.raises(TooManyItems, match=f"more than {REQUEST_ITEMS_MAX} items"):
                read()
        with pytest.raises(TooManyItems):
            read_within(1_000, read)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_unknown_tagged_fields_leave_nothing_behind() -> None:
    decoded = registry.load(ApiKey.METADATA).decode(
        memoryview(metadata_with_tags(5_000).encode(12)), 12
    )
    assert decoded == MetadataRequest(topics=[])


# -- headers -------------------------------------------------------------------------------------


def tags(count: int) -> bytes:
    out = bytearray()
    write_unsigned_varint(out, count)
    for number in range(count):
        write_unsigned_varint(out, number)
        out += b"\x01x"
    return bytes(out)


def frame_with(header_tags: bytes) -> bytes:
    header = encode_request_header(ApiKey.METADATA, 12, 7, "c")
    frame = header[:-1] + header_tags + MetadataRequest(topics=[]).encode(12)
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize("kernel", twins("connection"))
def test_tagged_fields_of_a_request_header_are_skipped_and_few(kernel: Any) -> None:
    twin_of = compiled if kernel is compiled("connection") else plain
    slots: Any = twin_of("slots")
    for count in (0, 1, HEADER_TAGS_MAX, HEADER_TAGS_MAX + 1, 10_000):
        table = slots.SlotTable(violation=InvariantViolated)
        core = kernel.Connection(table, frame_bytes_max=MIB, in_flight_max=9)
        raw = frame_with(tags(count))
        while raw:
            room = core.get_buffer(len(raw))
            part = raw[: len(room)]
            room[: len(part)] = part
            core.received(len(part))
            raw = raw[len(part) :]
        if count <= HEADER_TAGS_MAX:
            found = core.next_request(0)
            assert bytes(found[-1]) == MetadataRequest(topics=[]).encode(12)
        else:
            with pytest.raises(FrameError, match=f"{count} tagged fields in the request header"):
                core.next_request(0)


def test_so_they_are_in_what_brokers_forward_and_clients_receive() -> None:
    request = encode_request_header(ApiKey.METADATA, 12, 7, "c")[:-1]
    response = encode_response_header(ApiKey.METADATA, 12, 7)[:-1]
    for count in (0, 1, HEADER_TAGS_MAX):
        assert decode_request_header(request + tags(count))[1] == len(request + tags(count))
        found = decode_response_header(response + tags(count), ApiKey.METADATA, 12)
        assert found == (7, len(response + tags(count)))
    many = tags(HEADER_TAGS_MAX + 1)
    with pytest.raises(MalformedFrame, match="101 tagged fields in a header"):
        decode_request_header(request + many)
    with pytest.raises(MalformedFrame, match="101 tagged fields in a header"):
        decode_response_header(response + many, ApiKey.METADATA, 12)
