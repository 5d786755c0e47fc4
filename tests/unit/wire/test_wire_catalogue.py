"""The catalogue: every message is found, declared in harmony with itself, and loaded on demand."""

import subprocess
import sys
import types
import typing
from typing import Any
from uuid import UUID

import pytest

from kits.wire.wire_messages import all_structs, messages_of, structs_of
from millstream.wire.api_keys import APIS, OWN_KEYS, ApiKey
from millstream.wire.catalogue import all_keys, request_type, response_type, versions_of
from millstream.wire.fields import Field, Kind
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Struct

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())
STRUCTS = pytest.mark.parametrize(
    "struct", sorted(all_structs(), key=str), ids=lambda struct: struct.__name__
)
PYTHON_TYPES: dict[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.INT8: int,
    Kind.INT16: int,
    Kind.UINT16: int,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.FLOAT64: float,
    Kind.UUID: UUID,
    Kind.STRING: str,
    Kind.BYTES: Bytes,
    Kind.RECORDS: Bytes,
}


def test_client_facing_apis_are_all_there() -> None:
    left_out = {4, 5, 6, 7, 52, 53, 54, 59, 70, *range(82, 88)}
    assert {int(key) for key in all_keys()} == set(range(93)) - left_out
    assert len(set(ApiKey) - OWN_KEYS) == 93


def test_our_own_apis_are_far_from_kafkas() -> None:
    """A key that Kafka gives away later must not be one of ours; keys have 15 bits."""
    assert set(APIS) - set(all_keys()) == OWN_KEYS
    assert all(20_000 < key < 2**15 for key in OWN_KEYS)
    for key in OWN_KEYS:
        assert request_type(key).API_KEY is response_type(key).API_KEY is key


@KEYS
def test_messages_are_found_and_know_their_api(key: ApiKey) -> None:
    for message in messages_of(key):
        assert key is message.API_KEY
        assert APIS[key] == (message.VERSIONS, message.FLEXIBLE_FROM)
        assert versions_of(key) == message.VERSIONS
    assert request_type(key).__name__.endswith("Request")
    assert response_type(key).__name__.endswith("Response")
    assert request_type(key).__module__.rpartition(".")[2] == key.name.lower()


@KEYS
def test_the_module_says_which_api_it_is(key: ApiKey) -> None:
    module = sys.modules[request_type(key).__module__]
    name = request_type(key).__name__.removesuffix("Request")
    assert module.__doc__
    assert module.__doc__.startswith(f"{name} (key {int(key)}): ")


def expected_annotation(field: Field) -> Any:
    value: Any = field.struct or PYTHON_TYPES[field.element or field.kind]
    if field.element is not None:
        value = types.GenericAlias(list, (value,))
    return value | None if field.nullable else value


@STRUCTS
def test_annotations_say_what_the_declarations_do(struct: type[Struct]) -> None:
    hints = typing.get_type_hints(struct)
    for field in struct.FIELDS:
        assert hints[field.name] == expected_annotation(field), field


@STRUCTS
def test_declarations_make_sense(struct: type[Struct]) -> None:
    for field in struct.FIELDS:
        assert len(field.versions) > 0, field
        if field.default is None:
            assert field.nullable, field
    tags = [field.tag for field in struct.FIELDS if field.tag is not None]
    assert len(set(tags)) == len(tags)


@KEYS
def test_tags_exist_only_in_flexible_versions(key: ApiKey) -> None:
    for message in messages_of(key):
        for struct in structs_of(message):
            for field in (one for one in struct.FIELDS if one.tag is not None):
                assert message.FLEXIBLE_FROM is not None
                assert field.versions[0] >= message.FLEXIBLE_FROM


def loaded_after(statement: str) -> set[str]:
    show = "import sys; print(*(one for one in sys.modules if 'wire.messages.' in one))"
    command = [sys.executable, "-c", f"{statement}; {show}"]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return {name.rpartition(".")[2] for name in told.split()}


def test_versions_and_headers_need_no_message() -> None:
    statement = (
        "from millstream.wire import catalogue, headers, errors; from millstream.wire.api_keys "
        "import ApiKey; [catalogue.versions_of(key) for key in catalogue.all_keys()]"
    )
    assert loaded_after(statement) == set()


def test_a_message_is_imported_alone() -> None:
    statement = (
        "from millstream.wire import catalogue; from millstream.wire.api_keys import ApiKey; "
        "catalogue.request_type(ApiKey.METADATA)"
    )
    assert loaded_after(statement) == {"metadata"}


def test_importing_a_message_compiles_nothing() -> None:
    """Codecs and constructors come with their first use: a broker's start is short."""
    statement = (
        "import builtins; real = builtins.exec; seen = []; "
        "builtins.exec = lambda code, *rest: (seen.append(getattr(code, 'co_filename', '')), "
        "real(code, *rest))[1]; import millstream.wire.messages.metadata as m; "
        "assert not [one for one in seen if one.startswith('<')], seen; m.MetadataRequest(); "
        "assert [one for one in seen if one.startswith('<constructor')], seen"
    )
    assert loaded_after(statement) == {"metadata"}


def test_introspection_of_a_field() -> None:
    """What a comparison with other definitions needs."""
    fields = {field.name: field for field in request_type(ApiKey.METADATA).FIELDS}
    topics = fields["topics"]
    assert (topics.kind, topics.element) == (Kind.ARRAY, Kind.STRUCT)
    assert topics.struct is not None
    assert topics.struct.__name__ == "MetadataRequestTopic"
    assert (0 in topics.nullable, 1 in topics.nullable) == (False, True)
    assert (topics.default, topics.tag, topics.ignorable) == ([], None, False)
    flag = fields["include_cluster_authorized_operations"]
    assert (flag.kind, flag.versions, flag.default) == (Kind.BOOLEAN, range(8, 11), False)
