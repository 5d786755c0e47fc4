"""Headers: which version goes with which API, and their bytes."""

import pytest

from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from millstream.wire.primitives import MalformedFrame

BOTH_SIDES = [
    # key, version, request header, response header
    (ApiKey.METADATA, 8, 1, 0),
    (ApiKey.METADATA, 9, 2, 1),
    (ApiKey.API_VERSIONS, 2, 1, 0),
    (ApiKey.API_VERSIONS, 3, 2, 0),
    (ApiKey.API_VERSIONS, 99, 2, 0),
    (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 2, 1),
    (ApiKey.METADATA, -1, 1, 0),
]


@pytest.mark.parametrize(("key", "version", "request_version", "response_version"), BOTH_SIDES)
def test_header_versions(
    key: ApiKey, version: int, request_version: int, response_version: int
) -> None:
    """ApiVersions answers with the oldest header, so that a client can read it before it knows."""
    assert request_header_version(key, version) == request_version
    assert response_header_version(key, version) == response_version


@pytest.mark.parametrize("client_id", [None, "", "client é"])
@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name.lower())
def test_request_headers_come_back(key: ApiKey, client_id: str | None) -> None:
    for version in APIS[key].versions:
        raw = encode_request_header(key, version, -7, client_id)
        header, at = decode_request_header(raw + b"body")
        assert header == RequestHeader(key, version, -7, client_id)
        assert at == len(raw)
        assert header.api_key is key


@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name.lower())
def test_response_headers_come_back(key: ApiKey) -> None:
    for version in APIS[key].versions:
        raw = encode_response_header(key, version, 5)
        assert decode_response_header(raw + b"body", key, version) == (5, len(raw))


def test_bytes_of_request_headers() -> None:
    """The client id is never compact, not even with tagged fields behind it."""
    plain = encode_request_header(ApiKey.METADATA, 8, 1, "ab")
    flexible = encode_request_header(ApiKey.METADATA, 9, 1, "ab")
    assert plain.hex(" ") == "00 03 00 08 00 00 00 01 00 02 61 62"
    assert flexible.hex(" ") == "00 03 00 09 00 00 00 01 00 02 61 62 00"


def test_bytes_of_response_headers() -> None:
    assert encode_response_header(ApiKey.METADATA, 8, 1).hex() == "00000001"
    assert encode_response_header(ApiKey.METADATA, 9, 1).hex() == "0000000100"
    assert encode_response_header(ApiKey.API_VERSIONS, 3, 1).hex() == "00000001"


def test_tagged_fields_of_a_header_are_skipped() -> None:
    raw = encode_request_header(ApiKey.METADATA, 9, 1, None)[:-1] + b"\x01\x63\x02xx"
    header, at = decode_request_header(raw + b"body")
    assert (header.client_id, at) == (None, len(raw))


def test_a_version_to_come_is_told_as_it_is() -> None:
    """Whoever dispatches answers it: ApiVersions with version 0, others with a closed door."""
    raw = encode_request_header(ApiKey.API_VERSIONS, 77, 1, "c")
    assert decode_request_header(raw)[0].api_version == 77


@pytest.mark.parametrize("number", [4, 52, 93, -1, 32767])
def test_a_key_outside_the_catalogue_is_malformed(number: int) -> None:
    raw = number.to_bytes(2, "big", signed=True) + b"\0\0\0\0\0\1\xff\xff"
    with pytest.raises(MalformedFrame, match=f"unknown API key {number}"):
        decode_request_header(raw)


def test_every_cut_of_a_header_is_malformed() -> None:
    raw = encode_request_header(ApiKey.METADATA, 9, 1, "client")
    for size in range(len(raw)):
        with pytest.raises(MalformedFrame):
            decode_request_header(raw[:size])
    raw = encode_response_header(ApiKey.METADATA, 9, 1)
    for size in range(len(raw)):
        with pytest.raises(MalformedFrame):
            decode_response_header(raw[:size], ApiKey.METADATA, 9)
