"""Byte for byte what Kafka's own classes write, and nothing they cannot read.

One JVM holds Kafka's message classes. Messages are made from our declarations, by a seed that
every failure tells; `WIRE_SEED=... WIRE_ROUNDS=...` plays it again or longer.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kits.interop.wire_json import Misfit, Seeded, kafka_json, misfits, outline, with_items
from kits.interop.wire_program import KafkaApi, Outcome, WireProgram, wire_program
from kits.wire.wire_messages import EMPTY, FULL, STRANGE, Case, Choices, cases, fill
from millstream.wire import headers
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.catalogue import all_keys
from millstream.wire.schema import Message

pytestmark = pytest.mark.interop

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())
SEED: Final = os.environ.get("WIRE_SEED", "millstream")
ROUNDS: Final = int(os.environ.get("WIRE_ROUNDS", "20"))


@pytest.fixture(scope="module")
def program(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireProgram]:
    print(f"replay: WIRE_SEED={SEED} WIRE_ROUNDS={ROUNDS}")
    with wire_program(jars, tmp_path_factory.mktemp("wire") / "program.log") as running:
        yield running


def named(case: Case, about: object) -> str:
    return f"{case} {about} (WIRE_SEED={SEED} WIRE_ROUNDS={ROUNDS})"


def without_unknown_tags(case: Case) -> list[Any]:
    """Kafka's JSON has no place for unknown tags."""
    chosen: list[Choices] = [
        Seeded(f"{SEED} {case} {number}", has_unknown_tags=False) for number in range(ROUNDS)
    ]
    return [fill(case, choices) for choices in (FULL, EMPTY, *chosen)]


def with_unknown_tags(case: Case) -> list[Any]:
    chosen: list[Choices] = [
        Seeded(f"{SEED} {case} tags {number}", has_unknown_tags=True) for number in range(ROUNDS)
    ]
    return [fill(case, choices) for choices in (STRANGE, *chosen)]


@KEYS
def test_kafka_writes_the_same_bytes(program: WireProgram, key: ApiKey) -> None:
    """The same fields give the same bytes, and theirs decode to our fields."""
    for case in cases(key):
        messages = without_unknown_tags(case)
        asked = [kafka_json(one, case.version, is_given=True) for one in messages]
        theirs = program.write(case.message.__name__, case.version, asked)
        for message, outcome in zip(messages, theirs, strict=True):
            assert not outcome.refused, named(case, message)
            assert outcome.data is not None
            assert message.encode(case.version) == outcome.data, named(case, message)
            assert case.message.decode(outcome.data, case.version) == message, named(case, message)


@KEYS
def test_kafka_reads_our_bytes(program: WireProgram, key: ApiKey) -> None:
    """Kafka finds our fields in our bytes, and writes the same bytes again, unknown tags too."""
    for case in cases(key):
        messages = without_unknown_tags(case) + with_unknown_tags(case)
        bodies = [one.encode(case.version) for one in messages]
        theirs = program.read(case.message.__name__, case.version, bodies)
        for message, body, outcome in zip(messages, bodies, theirs, strict=True):
            about = named(case, f"{message} {outcome.refused}")
            assert outcome.data == body, about
            assert case.message.decode(body, case.version) == message, about
            assert outcome.fields == kafka_json(message, case.version, is_given=False), about


@KEYS
def test_unset_fields_have_kafkas_defaults(program: WireProgram, key: ApiKey) -> None:
    """Messages with default values, with no items in their arrays and with one."""
    for case in cases(key):
        messages = [case.message(), with_items(case.message, case)]
        outlines = [{}, outline(case.message, case)]
        theirs = program.write_fresh(case.message.__name__, case.version, outlines)
        for message, outcome in zip(messages, theirs, strict=True):
            check_same_end(message, case, outcome, "defaults")


@KEYS
def test_what_a_version_cannot_say_is_left_out_or_refused_alike(
    program: WireProgram, key: ApiKey
) -> None:
    """One field too many, or one null too many."""
    for case in cases(key):
        found = list(misfits(case))
        for misfit, outcome in zip(found, theirs_of(program, case, found), strict=True):
            check_same_end(misfit.message, case, outcome, misfit.path)


def theirs_of(program: WireProgram, case: Case, found: list[Misfit]) -> Iterator[Outcome]:
    """In the order of the misfits."""
    name, version = case.message.__name__, case.version
    plain = [one for one in found if one.outline is None]
    asked = [kafka_json(one.message, version, is_given=True) for one in plain]
    written = iter(program.write(name, version, asked))
    outlines = [one.outline for one in found if one.outline is not None]
    fresh = iter(program.write_fresh(name, version, outlines))
    return (next(written if one.outline is None else fresh) for one in found)


def check_same_end(message: Message, case: Case, theirs: Outcome, about: str) -> None:
    ours, refusal = None, ""
    try:
        ours = message.encode(case.version)
    except ValueError as error:
        refusal = str(error)
    what = f"{case} {about}: ours {ours!r} {refusal}, Kafka's {theirs.data!r} {theirs.refused}"
    assert ours == theirs.data, what
    assert bool(refusal) == bool(theirs.refused), what


# -- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("client_id", [None, "", "app", "näme 🦀", "x" * 300])
def test_request_headers_are_the_same(program: WireProgram, client_id: str | None) -> None:
    chosen = random.Random(f"{SEED} {client_id}")
    for api in declared_apis(program):
        for version in api.versions:
            number = chosen.randrange(-(2**31), 2**31)
            header = headers.RequestHeader(ApiKey(api.key), version, number, client_id)
            names = ("requestApiKey", "requestApiVersion", "correlationId", "clientId")
            plain = dict(zip(names, header, strict=True))
            form = api.request_headers[header.api_version]
            (theirs,) = program.write("RequestHeader", form, [plain])
            ours = headers.encode_request_header(*header)
            assert ours == theirs.data, header
            assert headers.decode_request_header(ours) == (header, len(ours))


def test_response_headers_are_the_same(program: WireProgram) -> None:
    chosen = random.Random(SEED)
    for api in declared_apis(program):
        for version in api.versions:
            key, number = ApiKey(api.key), chosen.randrange(-(2**31), 2**31)
            plain = {"correlationId": number}
            form = api.response_headers[version]
            (theirs,) = program.write("ResponseHeader", form, [plain])
            ours = headers.encode_response_header(key, version, number)
            assert ours == theirs.data, (key, version)
            assert headers.decode_response_header(ours, key, version) == (number, len(ours))


def declared_apis(program: WireProgram) -> list[KafkaApi]:
    """As Kafka describes them: which header a version has is its word, not ours."""
    return [api for api in program.apis() if api.key in APIS]
