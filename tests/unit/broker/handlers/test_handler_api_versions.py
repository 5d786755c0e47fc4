"""ApiVersions, versions 0-4, and the answer to all others."""

import importlib
import re

import pytest

from kits.broker.offsets_kit import LogDesk
from kits.broker.versions import versions_of
from millstream.broker.handlers import api_versions
from millstream.broker.requests import registry
from millstream.broker.requests.announced import unsupported_version
from millstream.broker.requests.registry import SERVED
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

HEAD = re.compile(r"[\w ]+ \(key (?P<key>\d+)\), versions? (?P<first>\d+)(?:-(?P<last>\d+))?")


def ask(version: int, name: str = "librdkafka", software: str = "2.15.0") -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    return LogDesk().send(api_versions, request, ApiVersionsResponse, version)


def ranges(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}


@pytest.mark.parametrize("version", versions_of(api_versions))
def test_every_version_tells_what_is_served(version: int) -> None:
    response = ask(version)
    assert response.error_code == 0
    expected = {
        int(key): (served.versions[0], served.versions[-1]) for key, served in SERVED.items()
    }
    expected[ApiKey.PRODUCE] = (0, SERVED[ApiKey.PRODUCE].versions[-1])
    assert ranges(response) == expected
    assert [one.api_key for one in response.api_keys] == sorted(SERVED)


@pytest.mark.parametrize("key", SERVED)
def test_every_handler_says_in_its_head_what_is_served(key: ApiKey) -> None:
    """The registry has the versions; a head that says others would mislead its readers."""
    served = SERVED[key]
    assert registry.load(key).versions == served.versions
    module = importlib.import_module(f"millstream.broker.handlers.{served.module}")
    head = HEAD.match(module.__doc__ or "")
    assert head is not None, module.__doc__
    first, last = int(head["first"]), int(head["last"] or head["first"])
    assert (int(head["key"]), range(first, last + 1)) == (key, served.versions)


@pytest.mark.parametrize("version", [3, 4])
def test_features_that_are_there_are_finalized_at_the_level_that_is_supported(version: int) -> None:
    """Without `transaction.version`, which makes a producer use another protocol (KIP-890)."""
    response = ask(version)
    supported = [
        (one.name, one.min_version, one.max_version) for one in response.supported_features
    ]
    assert sorted(supported) == [
        ("eligible.leader.replicas.version", 1, 1),
        ("group.version", 1, 1),
        ("metadata.version", 30, 30),
    ]
    finalized = [
        (one.name, one.min_version_level, one.max_version_level)
        for one in response.finalized_features
    ]
    assert finalized == supported
    assert response.finalized_features_epoch >= 0


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "is_fine"),
    [
        ("apache-kafka-java", True),
        ("a", True),
        ("a.b-c.9", True),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a b", False),
        ("a\n", False),
        ("ä", False),
        ("a_b", False),
    ],
)
def test_software_must_have_a_name(version: int, name: str, is_fine: bool) -> None:
    expected = 0 if is_fine else ErrorCode.INVALID_REQUEST
    for response in (ask(version, name=name), ask(version, software=name)):
        assert response.error_code == expected
        assert bool(response.api_keys) == is_fine


@pytest.mark.parametrize("version", range(3))
def test_older_versions_have_no_software_to_name(version: int) -> None:
    assert ask(version, name="", software="").error_code == 0


def test_the_answer_to_an_unknown_version_is_readable_by_all() -> None:
    """KIP-511."""
    raw = unsupported_version().encode(0)
    assert raw == bytes.fromhex("0023 00000001 0012 0000 0004")
    response = ApiVersionsResponse.decode(memoryview(raw), 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ranges(response) == {ApiKey.API_VERSIONS: (0, 4)}
