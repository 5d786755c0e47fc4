"""Errors of the client: typed, told in words, and whole after a trip through pickle."""

import pickle
from uuid import UUID

import pytest

from millstream.client.errors import (
    BrokersUnreachable,
    ClientError,
    DeadlinePassed,
    NotAuthorized,
    NotSupported,
    OffsetOutOfRange,
    RecordTooLarge,
    RequestRefused,
    TopicExists,
    TopicInvalid,
    TopicRecreated,
    TopicUnknown,
    code_of,
    error_for,
)
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode

HERE = TopicPartition("events", 3)
ALL = [
    BrokersUnreachable({"a:1": "refused"}, within_s=5),
    DeadlinePassed("x", within_s=2.5, last_error=ErrorCode.NOT_CONTROLLER),
    OffsetOutOfRange(HERE, wanted=Offset(5), start=Offset(10), end=Offset(20)),
    TopicRecreated("events", old_id=TopicId(UUID(int=1)), new_id=TopicId(UUID(int=2))),
    TopicExists("events", may_be_ours=True),
    NotAuthorized(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "events"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda one: type(one).__name__)
def test_an_error_survives_pickling_with_everything_it_carries(error: ClientError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert isinstance(again, OperatingError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TopicUnknown),
        (ErrorCode.UNKNOWN_TOPIC_ID, TopicUnknown),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, TopicInvalid),
        (ErrorCode.TOPIC_ALREADY_EXISTS, TopicExists),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, NotAuthorized),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NotAuthorized),
        (ErrorCode.MESSAGE_TOO_LARGE, RecordTooLarge),
        (ErrorCode.UNSUPPORTED_VERSION, NotSupported),
        (ErrorCode.INVALID_CONFIG, RequestRefused),
    ],
)
def test_codes_become_types(code: ErrorCode, kind: type[ClientError]) -> None:
    error = error_for(code, topic="events", message="the broker's words")
    assert type(error) is kind
    assert error.code is not None
    assert "events" in str(error)


def test_every_code_has_an_error_that_says_something() -> None:
    for code in ErrorCode:
        assert len(str(error_for(code, about="it"))) > 10
        assert error_for(code, topic="t", partition=1).code is not None


def test_the_brokers_own_words_are_passed_on() -> None:
    assert "at least 3" in str(error_for(ErrorCode.INVALID_CONFIG, message="at least 3"))


def test_an_unknown_number_is_a_failure_of_the_broker() -> None:
    assert code_of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(31_000) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("wanted", "words"),
    [(5, "begins at 10"), (25, "ends at 20"), (15, r"\[10, 20\)")],
)
def test_an_offset_out_of_range_says_which_way(wanted: int, words: str) -> None:
    error = OffsetOutOfRange(HERE, wanted=Offset(wanted), start=Offset(10), end=Offset(20))
    with pytest.raises(OffsetOutOfRange, match=words):
        raise error
    assert "events-3" in str(error)


def test_unreachable_brokers_are_told_one_by_one() -> None:
    text = str(BrokersUnreachable({"a:1": "refused", "b:2": "b:2: timed out"}, within_s=5))
    assert "within 5 s (a:1: refused; b:2: timed out)" in text


@pytest.mark.parametrize(
    ("given_s", "shown"),
    [
        (3.99986, "4"),
        (60.0, "60"),
        (2.5, "2.5"),
        (0.3, "0.3"),
        (0.0499999, "0.05"),
        (1e5, "100000"),
    ],
)
def test_times_are_shown_as_they_were_meant(given_s: float, shown: str) -> None:
    assert f"timed out after {shown} s" in str(DeadlinePassed("x", within_s=given_s))
    assert f"within {shown} s" in str(BrokersUnreachable({}, within_s=given_s))
