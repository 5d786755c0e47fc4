"""The constants of the compiled kernels are those of plain Python, and those of the formats."""

import re
from pathlib import Path
from struct import calcsize
from types import ModuleType

import pytest

import millstream.kernels
from kits.kernels.kernel_twins import compiled, needs_compiled, plain
from millstream.kernels import batch_layout, column_types, outcomes, request_layout
from millstream.kernels.errors import Reason
from millstream.model import limits

COMPILED = Path(millstream.kernels.__file__).parent / "_compiled"
ENUM = re.compile(r"^cdef enum:\n((?:    .*\n|\n)+)", re.MULTILINE)
MEMBER = re.compile(r"^    (\w+) = ([^#\n]+)", re.MULTILINE)

BATCH_HEADER = {
    "BASE_OFFSET_AT": "q",
    "LENGTH_AT": "i",
    "LEADER_EPOCH_AT": "i",
    "MAGIC_AT": "b",
    "CRC_AT": "I",
    "ATTRIBUTES_AT": "h",
    "LAST_OFFSET_DELTA_AT": "i",
    "BASE_TIMESTAMP_AT": "q",
    "MAX_TIMESTAMP_AT": "q",
    "PRODUCER_ID_AT": "q",
    "PRODUCER_EPOCH_AT": "h",
    "BASE_SEQUENCE_AT": "i",
    "RECORD_COUNT_AT": "i",
}
"""As Kafka's documentation lists the fields."""


def constants_in(text: str) -> dict[str, int]:
    """What the anonymous enums of a `.pxd` define; a name of its own may be used further down."""
    found: dict[str, int] = {}
    for body in ENUM.findall(text):
        for name, value in MEMBER.findall(body):
            assert name not in found
            found[name] = eval(value, {"__builtins__": {}}, dict(found))
    return found


def constants_of(module: ModuleType) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if name.isupper()}


def constants_of_pxd(name: str) -> dict[str, int]:
    return constants_in((COMPILED / f"{name}.pxd").read_text())


def test_constants_are_found_in_enums() -> None:
    text = "cdef enum:\n    # why\n    A = 1 << 4  # so\n\n    B = A - 1\n\ncdef int c = 3\n"
    assert constants_in(text) == {"A": 16, "B": 15}


@pytest.mark.parametrize("module", [batch_layout, outcomes, request_layout])
def test_enums_have_the_constants_of_plain_python(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    assert constants_of_pxd(name) == constants_of(module)


def test_reasons_are_those_of_the_error() -> None:
    assert constants_of_pxd("reasons") == {one.name: one.value for one in Reason}


def test_flags_of_columns_are_those_of_plain_python() -> None:
    known = constants_of(column_types)
    shared = {name: one for name, one in constants_of_pxd("column_decode").items() if name in known}
    assert shared == {name: known[name] for name in shared}
    assert {"FLAG_CONTROL", "FLAG_TRANSACTIONAL", "DECODE_ROW_COST"} <= shared.keys()


def test_fields_of_a_batch_header_follow_each_other() -> None:
    at = 0
    for name, form in BATCH_HEADER.items():
        assert getattr(batch_layout, name) == at, name
        at += calcsize(f">{form}")
    assert at == batch_layout.HEADER_BYTES


def test_sizes_follow_from_the_fields() -> None:
    assert batch_layout.UNCOUNTED_BYTES == batch_layout.LEADER_EPOCH_AT
    assert batch_layout.MAGIC_END == batch_layout.MAGIC_AT + 1
    assert batch_layout.ATTRIBUTES_LOW_AT == batch_layout.ATTRIBUTES_AT + 1
    assert batch_layout.ROW_BYTES == 8 * batch_layout.ROW_FIELDS
    assert batch_layout.SPAN_BYTES == 8 * batch_layout.SPAN_FIELDS
    assert calcsize(">hhih") == request_layout.CLIENT_ID_AT
    assert request_layout.HEADER_TAGS_MAX == limits.HEADER_TAGS_MAX
    assert calcsize(">ihqq") == request_layout.ANSWER_LOG_START_AT


WITH_CONSTANTS = ("batches", "records", "keymap", "slots", "fetch", "epoll_shell", "send_file")


@needs_compiled(*WITH_CONSTANTS)
@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_twins_export_the_same_constants(name: str) -> None:
    """The stubs say the same; this holds for those that a stub gives no value, too."""
    twin = compiled(name)
    assert twin is not None
    expected = {key: one for key, one in constants_of(plain(name)).items() if key in twin.__all__}
    assert expected
    assert {key: getattr(twin, key) for key in expected} == expected
