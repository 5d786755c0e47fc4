"""What hostile clients send is what it says, and what they do is judged."""

import pytest

from millstream.broker.requests.registry import SERVED
from millstream.model.limits import MIB
from millstream.testing.chaos.hostile.brokers_only import error_codes
from millstream.testing.chaos.hostile.large_requests import (
    ENTRIES_SENT,
    NUMBERS_SENT,
    array_paths,
    largest_arrays,
    unknown_tags,
)
from millstream.testing.chaos.hostile.rounds import RANDOM_ROUNDS, chosen_attacks
from millstream.testing.chaos.hostile.verdict import (
    LOG_LINES_MAX,
    MEMORY_GROWTH_MAX,
    MEMORY_LEFT_MAX,
    RoundFigures,
)
from millstream.testing.chaos.hostile.watch import Waits, session_losses, waits_of
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import request_type
from millstream.wire.errors import ErrorCode
from millstream.wire.fields import Kind
from millstream.wire.headers import decode_request_header
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream.wire.schema import Struct
from millstream.wire.values import NUMBERS, read_tags

SIZE = 0.001
KEYS = sorted(SERVED)
QUIET = Waits(100, 2.0, 5.0, 9.0, 0)


def arrays_in(struct: Struct) -> dict[str, int]:
    """The number of items of every array, by the name of its field."""
    found: dict[str, int] = {}
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if field.kind is Kind.ARRAY and value:
            found[field.name] = len(value)
            value = value[0]
        if isinstance(value, Struct):
            found |= arrays_in(value)
    return found


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name.lower())
def test_every_array_is_sent_at_its_largest(key: ApiKey) -> None:
    version = SERVED[key].versions[-1]
    paths = list(array_paths(request_type(key), version))
    frames = list(largest_arrays(key, SIZE))
    assert [".".join(one.name for one in path) for path in paths] == [name for name, _ in frames]
    for path, (_, frame) in zip(paths, frames, strict=True):
        header, begin = decode_request_header(memoryview(frame)[4:])
        assert (header.api_key, header.api_version) == (key, version)
        decoded = request_type(key).decode(memoryview(frame)[4 + begin :], version)
        full = NUMBERS_SENT if path[-1].element in NUMBERS else ENTRIES_SENT
        assert arrays_in(decoded)[path[-1].name] == int(full * SIZE)


def test_tags_are_as_many_as_fit() -> None:
    raw = unknown_tags(100_000)
    found, end = read_tags(memoryview(raw), 0, None, {})
    assert end == len(raw) >= 100_000
    assert len(found) > 20_000 or len(found) == 0  # counted and skipped, or collected


def test_waits_are_sorted_into_percentiles() -> None:
    samples = [(float(at), at / 1000, 0) for at in range(1, 101)]
    samples[3] = (4.0, 7.0, 2)
    waits = waits_of(samples)
    assert (waits.records, waits.worst, waits.failures) == (100, 7000.0, 2)
    assert waits.p50 == pytest.approx(52.0)
    assert waits.p99 == 7000.0
    assert waits_of([]) == Waits(0, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"session_losses": 1}, "sessions lost"),
        ({"waits": QUIET._replace(p99=101.0)}, "p99 101 ms"),
        ({"grown_bytes": MEMORY_GROWTH_MAX + MIB}, "memory +513 MiB"),
        ({"left_bytes": MEMORY_LEFT_MAX + MIB}, "memory stays +129 MiB"),
        ({"log_lines": LOG_LINES_MAX + 1}, "log lines"),
        ({"violations": ["broker-1 ended"]}, "broker-1 ended"),
    ],
)
def test_harm_is_named(changes: dict[str, object], text: str) -> None:
    figures = RoundFigures("attack", QUIET)
    assert figures.judge() == []
    assert "held" in figures.line([])
    for name, value in changes.items():
        setattr(figures, name, value)
    wrong = figures.judge()
    assert len(wrong) == 1
    assert text in wrong[0]
    assert text in figures.line(wrong)


def test_a_lost_session_is_read_from_the_log() -> None:
    lines = [
        b'{"message": "no longer registered; resigned all leaderships", "epoch": 12}',
        b'{"message": "topic created", "topic": "a"}',
    ]
    assert session_losses(lines) == 1


def test_codes_of_parts_stand_for_an_answer_without_one() -> None:
    part = PartitionData(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topic = FetchableTopicResponse(partitions=[part])
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert error_codes(FetchResponse(responses=[topic])) == [refused]
    assert error_codes(FetchResponse(error_code=refused)) == [refused]
    assert error_codes(FetchResponse()) == [ErrorCode.NONE]


def test_attacks_are_chosen_by_name_and_random_ones_by_their_seed() -> None:
    everything = [one.name for one in chosen_attacks("", 3)]
    assert everything[-RANDOM_ROUNDS:] == [f"random {3_000 + at}" for at in range(RANDOM_ROUNDS)]
    assert [one.name for one in chosen_attacks("random 3001", 9)] == ["random 3001"]
    assert all("keeper" in one.name for one in chosen_attacks("keeper", 3))
    assert [one.name for one in chosen_attacks("", 3, 2)] == everything[:2]
    assert chosen_attacks("no such attack", 3) == []
