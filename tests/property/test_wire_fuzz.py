"""Any bytes either decode or raise MalformedFrame."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.wire.wire_messages import SHORT, Case, cases, edge_cases, fill
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import all_keys
from millstream.wire.headers import decode_request_header, decode_response_header
from millstream.wire.primitives import MalformedFrame

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())
CASES = [case for key in all_keys() for case in cases(key)]

HUGE_COUNTS = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x10"]
"""As an ordinary length and as compact ones."""
PEAK_BYTES_MAX = 256 * 1024
"""For frames of a few hundred bytes; one that was believed would take gigabytes."""


def decodes_or_is_refused(case: Case, raw: bytes) -> None:
    try:
        message = case.message.decode(raw, case.version)
    except MalformedFrame:
        return
    # What was taken is a proper message: it can be written, and reads back to the same bytes.
    # (Bytes, because not-a-number differs from itself.)
    written = message.encode(case.version)
    assert case.message.decode(written, case.version).encode(case.version) == written, case


@given(case=st.sampled_from(CASES), raw=st.binary(max_size=200))
@settings(max_examples=1_000, deadline=None)
def test_any_bytes(case: Case, raw: bytes) -> None:
    decodes_or_is_refused(case, raw)


@KEYS
def test_any_byte_changed(key: ApiKey) -> None:
    for case in edge_cases(key):
        raw = fill(case, SHORT).encode(case.version)
        for at in range(len(raw)):
            for byte in (0x00, 0x7F, 0x80, 0xFF):
                decodes_or_is_refused(case, raw[:at] + bytes([byte]) + raw[at + 1 :])


@given(case=st.sampled_from(CASES), data=st.data())
@settings(max_examples=500, deadline=None)
def test_valid_messages_damaged(case: Case, data: st.DataObject) -> None:
    """Pieces overwritten, cut out, doubled."""
    raw = fill(case, SHORT).encode(case.version)
    for _ in range(data.draw(st.integers(1, 3))):
        at, size = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, 8))
        raw = raw[:at] + data.draw(st.binary(max_size=8)) + raw[at + size :]
    decodes_or_is_refused(case, raw)


def with_huge_counts(case: Case) -> Iterator[bytes]:
    raw = fill(case, SHORT).encode(case.version)
    for at in range(len(raw)):
        for count in HUGE_COUNTS[1:] if case.is_flexible else HUGE_COUNTS[:1]:
            yield raw[:at] + count + raw[at:]


@KEYS
def test_a_count_reserves_no_memory(key: ApiKey) -> None:
    """Wherever a huge number stands: as count of an array or of tags, or as length of a string."""
    for case in edge_cases(key):
        frames = list(with_huge_counts(case))
        case.message.decode(fill(case, SHORT).encode(case.version), case.version)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for raw in frames:
                decodes_or_is_refused(case, raw)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak - before < PEAK_BYTES_MAX, case


@given(raw=st.one_of(st.binary(max_size=40), st.binary(max_size=30).map(b"\0\x03\0\x0c".__add__)))
@settings(max_examples=500, deadline=None)
def test_any_header(raw: bytes) -> None:
    try:
        _, at = decode_request_header(raw)
        assert 10 <= at <= len(raw)
    except MalformedFrame:
        pass
    try:
        _, at = decode_response_header(raw, ApiKey.METADATA, 12)
        assert 5 <= at <= len(raw)
    except MalformedFrame:
        pass
