"""InitProducerId, versions 0-5."""

import pytest

from kits.broker.offsets_kit import LogDesk
from kits.broker.versions import versions_of
from millstream.broker.handlers import init_producer_id
from millstream.model.errors import DiskFull
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def ask(desk: LogDesk, version: int = 5, **fields: int | str | None) -> InitProducerIdResponse:
    fields.setdefault("transactional_id", None)
    request = InitProducerIdRequest(**fields)  # type: ignore[arg-type]
    return desk.send(init_producer_id, request, InitProducerIdResponse, version)


@pytest.mark.parametrize("version", versions_of(init_producer_id))
def test_every_version_gives_a_new_id(version: int) -> None:
    desk = LogDesk()
    answers = [ask(desk, version) for _ in range(3)]
    assert all(one.error_code == 0 and one.producer_epoch == 0 for one in answers)
    assert len({one.producer_id for one in answers}) == 3
    assert all(one.producer_id >= 0 for one in answers)


def test_ids_are_handed_out_at_once_and_waited_for() -> None:
    """The first needs a block; those after it are answered without a task."""
    desk = LogDesk()

    async def story() -> list[bool]:
        kinds = []
        for _ in range(3):
            before = desk.services.producer_ids.left_count
            await desk.serve(
                init_producer_id,
                InitProducerIdRequest(transactional_id=None),
                InitProducerIdResponse,
                5,
            )
            kinds.append(before > 0)
        return kinds

    assert virtual_loop.run(story) == [False, True, True]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_brings_its_id_gets_another(version: int) -> None:
    """KIP-360 for producers without transactions: only a fresh id is safe for all partitions."""
    desk = LogDesk()
    first = ask(desk, version)
    for epoch in (0, 7, 32767):
        bumped = ask(desk, version, producer_id=first.producer_id, producer_epoch=epoch)
        assert bumped.error_code == 0
        assert bumped.producer_id > first.producer_id
        assert bumped.producer_epoch == 0


@pytest.mark.parametrize("fields", [{"producer_id": 5}, {"producer_epoch": 5}])
def test_id_and_epoch_come_together(fields: dict[str, int]) -> None:
    answer = ask(LogDesk(), **fields)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", versions_of(init_producer_id))
def test_transactions_have_no_coordinator_yet(version: int) -> None:
    answer = ask(LogDesk(), version, transactional_id="mine", transaction_timeout_ms=60_000)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "expected"),
    [
        ("", 60_000, ErrorCode.INVALID_REQUEST),
        ("mine", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("mine", -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("mine", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("mine", 900_000, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_what_is_checked_of_transactions(
    transactional_id: str, timeout_ms: int, expected: ErrorCode
) -> None:
    desk = LogDesk()
    answer = ask(desk, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    assert answer.error_code == expected


def test_a_block_that_cannot_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = LogDesk()

    async def refused() -> range:
        raise DiskFull("/data")

    with monkeypatch.context() as patch:
        patch.setattr(desk.controller, "allocate_producer_id_block", refused)
        assert ask(desk).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert ask(desk).error_code == 0
