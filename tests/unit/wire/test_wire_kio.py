"""kio, made from Kafka's definitions by others, and our catalogue agree: no Java is needed.

For every API and version: the declarations, the bytes of the same message, and what each reads
from the bytes of the other. `KIO_SEED=...` plays other messages.
"""

import io
import os
import random
from typing import Any, Final

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from kits.wire.kio_twins import differences, kio_twin, message_for
from kits.wire.wire_messages import Case, cases
from millstream.wire import headers
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.catalogue import all_keys
from millstream.wire.errors import ErrorCode

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())
SEED: Final = os.environ.get("KIO_SEED", "millstream")
ROUNDS: Final = 6


def kio_class(case: Case) -> Any:
    """The class of the same message and version."""
    is_request = case.message.__name__.endswith("Request")
    load = load_request_schema if is_request else load_response_schema
    return load(case.message.API_KEY, case.version)


def kio_bytes(theirs: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(theirs))(out, theirs)
    return out.getvalue()


def test_kio_has_every_version_that_we_have() -> None:
    """What follows leaves nothing out."""
    for key in all_keys():
        assert api_key_map[key] == key.name.lower()
        assert sorted(schema_name_map[api_key_map[key]]) == list(APIS[key].versions), key.name


def test_keys_have_the_same_numbers() -> None:
    theirs = {number: name.upper() for number, name in api_key_map.items()}
    assert {number: ApiKey(number).name for number in theirs} == theirs


def test_error_codes_are_the_same() -> None:
    theirs = {(one.name.upper(), int(one), one.retriable) for one in KioErrorCode}
    ours = {(one.name, int(one), one.is_retriable) for one in ErrorCode}
    assert ours ^ theirs == set()


@KEYS
def test_declarations_agree(key: ApiKey) -> None:
    found: list[str] = []
    for case in cases(key):
        theirs = kio_class(case)
        if theirs.__flexible__ != case.is_flexible:
            found.append(f"{case}: flexible: ours {case.is_flexible}")
        found += differences(case.message, theirs, case.version, str(case))
    assert not found, "\n".join(found)


@KEYS
def test_headers_have_the_same_version(key: ApiKey) -> None:
    for case in cases(key):
        is_request = case.message.__name__.endswith("Request")
        of = headers.request_header_version if is_request else headers.response_header_version
        assert of(key, case.version) == kio_class(case).__header_schema__.__version__, case


@KEYS
def test_each_reads_what_the_other_writes(key: ApiKey) -> None:
    for case in cases(key):
        for number in range(ROUNDS):
            seed = f"{SEED} {case} {number}"
            ours = message_for(case.message, kio_class(case), case, random.Random(seed))
            check_twins(case, ours, f"{seed!r}: {ours}")


@KEYS
def test_messages_of_defaults_are_the_same(key: ApiKey) -> None:
    for case in cases(key):
        check_twins(case, case.message(), f"{case} of defaults")


def check_twins(case: Case, ours: Any, about: str) -> None:
    theirs = kio_twin(ours, kio_class(case))
    our_bytes = ours.encode(case.version)
    assert our_bytes == kio_bytes(theirs), about
    assert case.message.decode(kio_bytes(theirs), case.version) == ours, about
    assert entity_reader(type(theirs))(our_bytes, 0) == (theirs, len(our_bytes)), about
