"""FindCoordinator, versions 0-6."""

import pytest

from millstream.broker.handlers import find_coordinator
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from offsets_kit import LogDesk

NOBODY = (-1, "", -1)


def ask(version: int, *keys: str, key_type: int = 0) -> FindCoordinatorResponse:
    if version < 4:
        request = FindCoordinatorRequest(key=keys[0], key_type=key_type)
    else:
        request = FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)
    return LogDesk().send(find_coordinator, request, FindCoordinatorResponse, version)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("key_type", [0, 1])
def test_one_key_has_no_coordinator(version: int, key_type: int) -> None:
    answer = ask(version, "group", key_type=key_type if version else 0)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (answer.node_id, answer.host, answer.port) == NOBODY
    assert bool(answer.error_message) == (version >= 1)


@pytest.mark.parametrize("version", range(4, 7))
@pytest.mark.parametrize("key_type", [0, 1])
def test_every_key_of_a_batch_is_answered(version: int, key_type: int) -> None:
    answer = ask(version, "a", "b", "", key_type=key_type)
    assert [one.key for one in answer.coordinators] == ["a", "b", ""]
    for one in answer.coordinators:
        assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (one.node_id, one.host, one.port) == NOBODY


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [2, 3, -1, 127])
def test_other_kinds_of_keys_are_refused(version: int, key_type: int) -> None:
    answer = ask(version, "key", key_type=key_type)
    found = answer.error_code if version < 4 else answer.coordinators[0].error_code
    assert found == ErrorCode.INVALID_REQUEST


def test_no_keys_no_answers() -> None:
    assert ask(4).coordinators == []
