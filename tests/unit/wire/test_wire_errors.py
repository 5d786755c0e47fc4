"""Error codes: complete, and told apart as clients tell them apart."""

import pytest

from millstream.wire.errors import ErrorCode

RETRIABLE_SAMPLES = [
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
]
FINAL_SAMPLES = [
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NONE,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNSUPPORTED_VERSION,
]


def test_no_code_is_missing() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


def test_a_code_is_its_number() -> None:
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value == 3
    assert not ErrorCode.NONE


@pytest.mark.parametrize("code", RETRIABLE_SAMPLES)
def test_retriable(code: ErrorCode) -> None:
    assert code.is_retriable


@pytest.mark.parametrize("code", FINAL_SAMPLES)
def test_not_retriable(code: ErrorCode) -> None:
    assert not code.is_retriable


def test_texts_are_one_line_each_and_differ() -> None:
    texts = [code.text for code in ErrorCode]
    assert len(set(texts)) == len(texts)
    assert all(text and "\n" not in text and not text.endswith(".") for text in texts)
