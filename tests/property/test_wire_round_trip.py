"""What is encoded decodes to the same, for every API, message and version."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.wire.wire_messages import EMPTY, FULL, SHORT, STRANGE, Case, Choices, Drawn, cases, fill
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import all_keys
from millstream.wire.primitives import MalformedFrame

KEYS = pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name.lower())


def check_round_trip(case: Case, message: Any) -> None:
    raw = message.encode(case.version)
    back = case.message.decode(raw, case.version)
    assert back == message, case
    assert back.encode(case.version) == raw, case


@KEYS
@pytest.mark.parametrize("choices", [FULL, EMPTY, STRANGE], ids=["full", "empty", "strange"])
def test_extremes_come_back(key: ApiKey, choices: Choices) -> None:
    for case in cases(key):
        check_round_trip(case, fill(case, choices))


@KEYS
def test_defaults_come_back(key: ApiKey) -> None:
    """A message nobody filled is one that every version can carry."""
    for case in cases(key):
        check_round_trip(case, case.message())


@KEYS
def test_any_message_comes_back(key: ApiKey) -> None:
    for case in cases(key):
        _try_many(case)


def _try_many(case: Case) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_round_trip(case, fill(case, Drawn(data.draw)))

    check()


@KEYS
def test_every_cut_is_malformed(key: ApiKey) -> None:
    """No beginning of a message passes for a whole one, nor does a message with more behind it."""
    for case in cases(key):
        raw = memoryview(fill(case, SHORT).encode(case.version))
        for size in range(len(raw)):
            with pytest.raises(MalformedFrame):
                case.message.decode(raw[:size], case.version)
        with pytest.raises(MalformedFrame, match="left"):
            case.message.decode(bytes(raw) + b"\0", case.version)
