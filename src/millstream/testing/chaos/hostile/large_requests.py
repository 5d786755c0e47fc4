"""One request that is expensive: tags, numbers, entries, and every array of every API."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from millstream.broker.requests.registry import SERVED
from millstream.testing.chaos.hostile.attack import (
    Attack,
    Connection,
    Scene,
    Send,
    noted,
    raw_frame,
    request_frame,
    send_each,
    unsigned_varint,
)
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import api_name, request_type
from millstream.wire.fields import NO_UUID, Field, Kind
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.schema import Message, Struct
from millstream.wire.values import NUMBERS

NUMBERS_SENT: Final = 3_900_000
ENTRIES_SENT: Final = 490_000
"""Both just below what a broker once took silently."""
REPEATS: Final = 3
"""The first of a kind is not like the others: modules are loaded, codecs compiled."""
GROUP: Final = "hostile"
ARRAYS_PREFIX: Final = "largest arrays of "
_LOW_BYTES: Final = [bytes([0x80 | low]) for low in range(0x80)]
_ZEROS: Final[dict[Kind, Any]] = {Kind.STRING: "", Kind.BYTES: b"", Kind.UUID: NO_UUID}


def attacks() -> Iterator[Attack]:
    for megabytes in (4, 28):
        yield Attack(f"{megabytes} MB of unknown tags", partial(_tags, megabytes))
    for name, request in (
        ("ElectLeaders", _elect),
        ("ListPartitionReassignments", _list_reassignments),
        ("OffsetFetch", _offset_fetch),
    ):
        yield Attack(f"{name} of {NUMBERS_SENT:,} numbers", partial(_numbers, request))
    yield Attack(f"OffsetCommit of {ENTRIES_SENT:,} entries", _offset_commit)
    yield Attack(f"Fetch of {ENTRIES_SENT:,} partitions", _fetch)
    for key in sorted(SERVED):
        if list(array_paths(request_type(key), SERVED[key].versions[-1])):
            yield Attack(f"{ARRAYS_PREFIX}{api_name(key)}", partial(_largest_arrays, key))


# -- tags --------------------------------------------------------------------------------------


def unknown_tags(size_bytes: int) -> bytes:
    """So many bytes of empty tagged fields, as small as ascending numbers can be."""
    out, high = bytearray(), 1
    while len(out) < size_bytes:
        tail = unsigned_varint(high) + b"\0"
        out += tail.join(_LOW_BYTES) + tail
        high += 1
    return unsigned_varint(len(_LOW_BYTES) * (high - 1)) + bytes(out)


def _tags(megabytes: int, scene: Scene) -> Send:
    tags = unknown_tags(scene.target.share_of(megabytes * 1_000_000))
    frame = raw_frame(ApiKey.METADATA, 12, b"\1\0\0" + tags)
    return lambda: send_each(scene, [frame] * REPEATS)


# -- numbers and entries -----------------------------------------------------------------------


def _elect(topic: str, numbers: list[int]) -> tuple[Any, int]:
    part = TopicPartitions(topic=topic, partitions=numbers)
    return ElectLeadersRequest(topic_partitions=[part], timeout_ms=1_000), 2


def _list_reassignments(topic: str, numbers: list[int]) -> tuple[Any, int]:
    part = ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
    return ListPartitionReassignmentsRequest(topics=[part], timeout_ms=1_000), 0


def _offset_fetch(topic: str, numbers: list[int]) -> tuple[Any, int]:
    part = OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[part])]), 9


def _numbers(make: Callable[[str, list[int]], tuple[Any, int]], scene: Scene) -> Send:
    count = scene.target.share_of(NUMBERS_SENT)
    request, version = make(scene.target.topic, list(range(1_000_000, 1_000_000 + count)))
    frame = request_frame(request, version)
    address = coordinator_of(scene, GROUP) if make is _offset_fetch else ""
    return lambda: send_each(scene, [frame] * REPEATS, address=address)


def _offset_commit(scene: Scene) -> Send:
    entries = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=1)
        for number in range(scene.target.share_of(ENTRIES_SENT))
    ]
    topic = OffsetCommitRequestTopic(name=scene.target.topic, partitions=entries)
    frame = request_frame(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 8)
    address = coordinator_of(scene, GROUP)
    return lambda: send_each(scene, [frame] * REPEATS, address=address)


def _fetch(scene: Scene) -> Send:
    partitions = [
        FetchPartition(partition=number, partition_max_bytes=1_000)
        for number in range(scene.target.share_of(ENTRIES_SENT))
    ]
    topics = [FetchTopic(topic=scene.target.topic, partitions=partitions)]
    frame = request_frame(FetchRequest(topics=topics, max_wait_ms=10), 12)
    return lambda: send_each(scene, [frame] * REPEATS)


def coordinator_of(scene: Scene, group: str) -> str:
    """Where the group's requests are served; the victim when none is named."""
    with noted(scene.outcome), Connection(scene.target.address) as connection:
        answer = connection.call(FindCoordinatorRequest(key=group), 2)
        if answer.error_code == 0:
            return f"{answer.host}:{answer.port}"
    return scene.target.address


# -- every array of every API ------------------------------------------------------------------


def array_paths(struct: type[Struct], version: int) -> Iterator[tuple[Field, ...]]:
    """The ways to every array of this version, from the outermost field inwards."""
    for field in struct.FIELDS:
        if version not in field.versions:
            continue
        if field.kind is Kind.ARRAY:
            yield (field,)
        if field.struct is not None:
            for inner in array_paths(field.struct, version):
                yield (field, *inner)


def with_array(
    struct: type[Struct], path: tuple[Field, ...], count: int, version: int
) -> tuple[Struct, str]:
    """A struct of defaults, but with `count` items at the end of the path; and the path's name."""
    field, *inner = path
    if not inner:
        zero = _ZEROS.get(field.element or field.kind, 0)
        item = field.struct() if field.struct is not None else zero
        return _made(struct, field, [item] * count), field.name
    if field.struct is None:
        raise ValueError(f"{field!r} has no fields")
    nested, name = with_array(field.struct, tuple(inner), count, version)
    value = [nested] if field.kind is Kind.ARRAY else nested
    return _made(struct, field, value), f"{field.name}.{name}"


def _made(struct: type[Struct], field: Field, value: object) -> Struct:
    made = struct()
    setattr(made, field.name, value)
    return made


def largest_arrays(key: ApiKey, size: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """A frame for each array of the API's newest version that we serve, with all it can have."""
    message: type[Message] = request_type(key)
    version = SERVED[key].versions[-1]
    for path in array_paths(message, version):
        is_of_numbers = path[-1].element in NUMBERS
        count = max(1, int((NUMBERS_SENT if is_of_numbers else ENTRIES_SENT) * size))
        made, name = with_array(message, path, count, version)
        yield name, request_frame(made, version)


def _largest_arrays(key: ApiKey, scene: Scene) -> Send:
    frames = [frame for _, frame in largest_arrays(key, scene.target.size)]
    return lambda: send_each(scene, frames)
