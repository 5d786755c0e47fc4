"""The catalogue says what Kafka's own definitions say: APIs, versions, fields, codes.

Every difference of a message is told at once, each in a line. APIs that Kafka has and we do not
declare are listed here with the reason; one that is in neither place fails.
"""

import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kits.interop.kafka_definitions import Definition, FieldDefinition, definitions
from kits.interop.wire_program import KafkaApi, KafkaError, WireProgram, wire_program
from kits.wire.wire_messages import messages_of
from millstream.wire import headers, messages
from millstream.wire.api_keys import APIS, OWN_KEYS, ApiKey
from millstream.wire.catalogue import all_keys, api_name
from millstream.wire.errors import ErrorCode
from millstream.wire.fields import Field, Kind
from millstream.wire.schema import Message, Struct

pytestmark = pytest.mark.interop

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())

REMOVED: Final = "Kafka 4 has no version of it: brokers learnt from ZooKeeper's controller so"
QUORUM: Final = "said among Kafka's controllers; ours do not talk to theirs"
SHARE_STATE: Final = "said among brokers: where Kafka keeps the state of share groups"
NOT_DECLARED: Final = {
    ApiKey.LEADER_AND_ISR: REMOVED,
    ApiKey.STOP_REPLICA: REMOVED,
    ApiKey.UPDATE_METADATA: REMOVED,
    ApiKey.CONTROLLED_SHUTDOWN: REMOVED,
    ApiKey.VOTE: QUORUM,
    ApiKey.BEGIN_QUORUM_EPOCH: QUORUM,
    ApiKey.END_QUORUM_EPOCH: QUORUM,
    ApiKey.FETCH_SNAPSHOT: QUORUM,
    ApiKey.CONTROLLER_REGISTRATION: QUORUM,
    ApiKey.UPDATE_RAFT_VOTER: QUORUM,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: SHARE_STATE,
}
FIRST_KNOWN_ELSEWHERE: Final = 93
"""Kafka 4.3 ends before this number."""


@pytest.fixture(scope="module")
def program(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireProgram]:
    with wire_program(jars, tmp_path_factory.mktemp("wire") / "program.log") as running:
        yield running


@pytest.fixture(scope="module")
def kafka_apis(program: WireProgram) -> dict[str, KafkaApi]:
    return {api.name: api for api in program.apis()}


# -- APIs --------------------------------------------------------------------------------------


def test_every_api_is_declared_or_left_out_for_a_reason(jars: Path) -> None:
    theirs = {one.key: one.name for one in definitions(jars).values() if one.key is not None}
    lost = {
        f"{name} (key {number})"
        for number, name in theirs.items()
        if number not in {*APIS, *NOT_DECLARED}
    }
    assert not lost, f"Kafka has them, we neither declare them nor say why not: {lost}"
    assert set(APIS) - OWN_KEYS | set(NOT_DECLARED) == set(theirs), (
        "we know APIs that Kafka has not"
    )
    assert not set(APIS) & set(NOT_DECLARED), "declared after all: no reason is needed"
    assert len(theirs) == FIRST_KNOWN_ELSEWHERE


def test_what_kafka_removed_has_no_versions(jars: Path) -> None:
    removed = {key for key, reason in NOT_DECLARED.items() if reason is REMOVED}
    without = {one.key for one in definitions(jars).values() if is_removed(one)}
    assert without == {int(key) for key in removed}


def is_removed(definition: Definition) -> bool:
    return definition.key is not None and definition.definition["validVersions"] == "none"


def test_names_and_numbers_are_those_of_kafkas_enumeration(
    kafka_apis: dict[str, KafkaApi],
) -> None:
    ours = {key.name: int(key) for key in ApiKey if key not in OWN_KEYS}
    assert ours == {name: api.key for name, api in kafka_apis.items()}


def test_every_message_module_is_compared() -> None:
    """No module of messages escapes the comparison below."""
    modules = {one.name for one in pkgutil.iter_modules(messages.__path__)}
    assert modules - {key.name.lower() for key in OWN_KEYS} == {
        key.name.lower() for key in all_keys()
    }


# -- messages ----------------------------------------------------------------------------------


@KEYS
def test_messages_agree_field_by_field(jars: Path, key: ApiKey) -> None:
    found: list[str] = []
    for message in messages_of(key):
        definition = definitions(jars).get(message.__name__)
        assert definition is not None, f"Kafka has no {message.__name__}"
        found += message_differences(message, definition)
    assert not found, "\n".join(["ours, then Kafka's:", *found])


def message_differences(message: type[Message], definition: Definition) -> Iterator[str]:
    name = message.__name__
    yield from different(f"{name}: key", int(message.API_KEY), definition.key)
    yield from different(f"{name}: versions", message.VERSIONS, definition.versions)
    first = definition.flexible[0] if definition.flexible else None
    yield from different(f"{name}: flexible from", message.FLEXIBLE_FROM, first)
    yield from struct_differences(name, message, definition, definition.versions)


def different(what: str, ours: Any, theirs: Any) -> Iterator[str]:
    if ours != theirs or type(ours) is not type(theirs):
        yield f"  {what}: {shown(ours)}, {shown(theirs)}"


def shown(value: Any) -> str:
    if not isinstance(value, range):
        return repr(value)
    return f"{value[0]}-{value[-1]}" if value else "none"


def struct_differences(
    where: str, struct: type[Struct], definition: Definition, alive: range
) -> Iterator[str]:
    """`alive` are the versions in which the struct can be there at all."""
    ours = {field.name: field for field in struct.FIELDS if common(field.versions, alive)}
    theirs = {field.name: field for field in definition.fields if common(field.versions, alive)}
    yield from (f"  {where}.{name}: only ours" for name in ours if name not in theirs)
    yield from (f"  {where}.{name}: only Kafka's" for name in theirs if name not in ours)
    if set(ours) == set(theirs):
        yield from different(f"{where}: order", list(ours), list(theirs))
    for name in ours:
        if name in theirs:
            yield from field_differences(f"{where}.{name}", ours[name], theirs[name], alive)


def field_differences(
    where: str, ours: Field, theirs: FieldDefinition, alive: range
) -> Iterator[str]:
    there = common(theirs.versions, alive)
    for what, our_value, their_value in (
        ("type", ours.kind.value, theirs.kind.value),
        ("items", (ours.element or ours.kind).value, theirs.item_kind.value),
        ("versions", common(ours.versions, alive), there),
        ("nullable", common(ours.nullable, there), common(theirs.nullable, there)),
        ("default", default_of(ours), theirs.default),
        ("tag", ours.tag, theirs.tag),
        ("tagged", there if ours.tag is not None else range(0), common(theirs.tagged, there)),
        ("ignorable", ours.ignorable, theirs.ignorable),
        ("compact form", True, theirs.has_compact_form),
    ):
        yield from different(f"{where}: {what}", our_value, their_value)
    if ours.struct is not None and theirs.struct is not None:
        yield from struct_differences(
            f"{where} ({ours.struct.__name__})", ours.struct, theirs.struct, there
        )
        names = {prefix + theirs.item_type for prefix in ("", "Request", "Response")}
        if ours.struct.__name__ not in names:
            yield f"  {where}: struct: {ours.struct.__name__}, {theirs.item_type}"


def common(one: range, other: range) -> range:
    """Versions in both."""
    low, high = max(one.start, other.start), min(one.stop, other.stop)
    return range(low, high) if low < high else range(0)


def default_of(field: Field) -> Any:
    if field.declared_default is None or field.kind not in (Kind.ARRAY, Kind.STRUCT):
        return field.declared_default
    return f"fresh {field.kind}"


# -- headers -----------------------------------------------------------------------------------


def test_headers_have_the_fields_that_we_write(jars: Path) -> None:
    """Ours are written by hand; bytes are compared in test_wire_java_bytes.py."""
    request, response = definitions(jars)["RequestHeader"], definitions(jars)["ResponseHeader"]
    assert (request.versions, request.flexible[0]) == (range(1, 3), 2)
    assert (response.versions, response.flexible[0]) == (range(2), 1)
    fields = [(one.name, one.kind, one.has_compact_form, one.tag) for one in request.fields]
    assert fields == [
        ("request_api_key", Kind.INT16, True, None),
        ("request_api_version", Kind.INT16, True, None),
        ("correlation_id", Kind.INT32, True, None),
        ("client_id", Kind.STRING, False, None),
    ]
    assert common(request.fields[-1].nullable, request.versions) == request.versions
    (only,) = response.fields
    assert (only.name, only.kind, only.tag) == ("correlation_id", Kind.INT32, None)


def test_every_version_has_kafkas_header(kafka_apis: dict[str, KafkaApi]) -> None:
    by_key = {api.key: api for api in kafka_apis.values()}
    for key in all_keys():
        theirs = by_key[key]
        assert theirs.versions == APIS[key].versions, api_name(key)
        for version in theirs.versions:
            ours = (
                headers.request_header_version(key, version),
                headers.response_header_version(key, version),
            )
            assert ours == (
                theirs.request_headers[version],
                theirs.response_headers[version],
            ), f"{api_name(key)} v{version}"


# -- error codes -------------------------------------------------------------------------------


def test_error_codes_and_what_clients_retry(program: WireProgram) -> None:
    ours = {KafkaError(one.name, int(one), one.is_retriable) for one in ErrorCode}
    theirs = set(program.errors())
    assert ours - theirs == set(), "not so in Kafka"
    assert theirs - ours == set(), "Kafka's, not ours"
