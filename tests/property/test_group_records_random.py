"""Random records of the offsets topic: whatever is written comes back, damage is told, never lost.

A reader that takes short cuts (`LogReader`) must come to what the one without them comes to.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.wire.wire_messages import Case, Drawn, fill
from millstream.groups.offsets.loader import LogReader
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import pack, pack_fixed
from millstream.groups.records.entries import (
    Decoded,
    Entry,
    UnreadableEntry,
    decode_batches,
    encode,
)
from millstream.groups.records.keys import (
    KINDS,
    Key,
    OffsetKey,
    decode_key,
    encode_key,
)
from millstream.groups.records.partition_of import java_hash
from millstream.groups.records.values import (
    VALUES,
    OffsetCommitValue,
    decode_as,
    decode_value,
    encode_value,
    write_version,
)
from millstream.kernels.columns import BatchOptions
from millstream.kernels.errors import MalformedRecords
from millstream.model.ids import Offset
from millstream.shards import record_blocks as blocks
from millstream.testing.record_batches import build_batch
from millstream.wire.primitives import MalformedFrame

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
BASIC = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def keys(draw: st.DrawFn) -> Key:
    made: Any = draw(st.sampled_from(list(KINDS)))
    if made is OffsetKey:
        return OffsetKey(draw(TEXTS), draw(TEXTS), draw(INT32))  # type: ignore[arg-type]
    key: Key = made(*(draw(TEXTS) for _ in made._fields))
    return key


@st.composite
def offset_values(draw: st.DrawFn) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=draw(INT64),
        leader_epoch=draw(INT32),
        metadata=draw(st.one_of(st.just(""), TEXTS)),
        commit_timestamp=draw(INT64),
        expire_timestamp=draw(st.one_of(st.just(-1), INT64)),
        topic_id=draw(st.one_of(st.just(OffsetCommitValue().topic_id), st.uuids())),
    )


@given(key=keys())
def test_any_key_comes_back(key: Key) -> None:
    back = decode_key(encode_key(key))
    assert back == key
    assert type(back) is type(key)


@pytest.mark.parametrize(
    ("made", "case"),
    [(key, Case(value, one)) for key, value in VALUES.items() for one in value.VERSIONS],
    ids=str,
)
def test_any_value_comes_back(made: type[Key], case: Case) -> None:
    @BASIC
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        value = fill(case, Drawn(data.draw))
        raw = encode_value(value, version=case.version)
        back = decode_as(VALUES[made], raw)
        assert back == value
        assert encode_value(back, version=case.version) == raw

    check()


@given(raw=st.binary(max_size=60), kind=st.sampled_from([0, *KINDS.values()]))
def test_no_bytes_make_a_key_reader_fail_otherwise(raw: bytes, kind: int) -> None:
    with suppress(MalformedFrame):
        decode_key(kind.to_bytes(2, "big") + raw)


@given(raw=st.binary(max_size=80), key=keys(), version=st.integers(0, 5))
def test_no_bytes_make_a_value_reader_fail_otherwise(raw: bytes, key: Key, version: int) -> None:
    with suppress(MalformedFrame):
        decode_value(key, version.to_bytes(2, "big") + raw)


@given(raw=st.binary(min_size=22, max_size=42), value=offset_values(), version=st.integers(0, 4))
def test_the_short_way_agrees_with_the_long_one(
    raw: bytes, value: OffsetCommitValue, version: int
) -> None:
    """On what is well formed and on what is not."""
    for one in (encode_value(value, version=version), b"\0\4" + raw):
        short = pack_fixed(7, one)
        if short is not None:
            assert short == pack(7, decode_as(OffsetCommitValue, one))


@given(value=offset_values())
def test_the_short_way_of_writing_agrees_with_the_long_one(value: OffsetCommitValue) -> None:
    version = write_version(value)
    assert encode_value(value) == encode_value(value, version=version)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """A record, well formed or not."""
    key = draw(keys())
    if isinstance(key, OffsetKey):
        version = draw(st.sampled_from([0, 1, 2, 3, 4, 4, 4]))
        value = encode_value(draw(offset_values()), version=version)
    else:
        value = encode_value(fill(Case(VALUES[type(key)], 0), Drawn(draw)), version=0)
    raw_key: bytes | None = encode_key(key)
    damage = draw(st.integers(0, 40))
    if damage == 0:
        value = draw(st.binary(max_size=30))
    elif damage == 1:
        raw_key = draw(st.one_of(st.none(), st.binary(max_size=30)))
    return raw_key, draw(st.sampled_from([value, value, value, None]))


def read_all(decoded: Iterable[Decoded]) -> tuple[list[Decoded], Offset | None]:
    """What comes out, and the record that could not be read."""
    found: list[Decoded] = []
    try:
        found.extend(decoded)
    except UnreadableEntry as error:
        return found, error.offset
    return found, None


def offset_in(decoded: Decoded) -> tuple[OffsetKey, OffsetCommitValue | None] | None:
    """The offset, if it is one."""
    if not isinstance(decoded.what, Entry) or not isinstance(decoded.what.key, OffsetKey):
        return None
    value = decoded.what.value
    assert value is None or isinstance(value, OffsetCommitValue)
    return decoded.what.key, value


@BASIC
@given(records=st.lists(pairs(), min_size=1, max_size=12))
def test_the_quick_reader_comes_to_what_the_slow_one_does(
    records: list[tuple[bytes | None, bytes | None]],
) -> None:
    batch = build_batch(records)
    slow, quick = Offsets(), Offsets()
    slow.on_high_watermark(Offset(len(records)))
    quick.on_high_watermark(Offset(len(records)))
    everything, slow_error = read_all(decode_batches(batch))
    for decoded in everything:
        if (found := offset_in(decoded)) is not None:
            slow.append(*found, decoded.offset)
    rest, quick_error = read_all(LogReader(quick).read(batch))
    assert quick_error == slow_error
    assert rest == [decoded for decoded in everything if offset_in(decoded) is None]
    groups = slow.group_ids()
    assert quick.group_ids() == groups
    assert [quick.topics_of(one) for one in groups] == [slow.topics_of(one) for one in groups]


@BASIC
@given(value=offset_values(), place=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(value: OffsetCommitValue, place: int, bit: int) -> None:
    """But in the base offset and leader epoch, which the broker writes and the CRC leaves out."""
    entry = Entry(OffsetKey("g", "t", 0), value)  # type: ignore[arg-type]
    batch = encode([entry], now_ms=1)
    place = 16 + place % (len(batch) - 16)
    batch[place] ^= 1 << bit
    with pytest.raises(MalformedRecords):
        list(decode_batches(batch))


SIZES = st.one_of(st.integers(0, 70), st.sampled_from([254, 255, 256, 400, 508, 511, 512, 600]))


@BASIC
@given(
    sizes=st.lists(st.tuples(SIZES, st.none() | SIZES), min_size=1, max_size=40),
    timestamp_ms=INT64,
    producer_id=st.none() | st.integers(0, 2**63 - 1),
)
def test_a_batch_of_few_records_is_what_the_columns_would_have_made(
    sizes: list[tuple[int, int | None]], timestamp_ms: int, producer_id: int | None
) -> None:
    """To the byte, whichever way is taken, and whatever takes more than one byte to count."""
    records = [
        (bytes([at]) * key, None if value is None else b"v" * value)
        for at, (key, value) in enumerate(sizes)
    ]
    options = BatchOptions()
    if producer_id is not None:
        options = BatchOptions(producer_id=producer_id, producer_epoch=7, is_transactional=True)
    batch = blocks.build_batch(records, timestamp_ms, options)
    assert batch == blocks.build_in_columns(records, timestamp_ms, options)
    assert isinstance(batch, bytearray)  # the log stamps it in place


@given(text=TEXTS)
def test_the_hash_of_any_text_is_javas(text: str) -> None:
    """By Java's definition: the sum of the units, each times a power of 31."""
    raw = text.encode("utf-16-be")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units))
    assert java_hash(text) == (total + 2**31) % 2**32 - 2**31
