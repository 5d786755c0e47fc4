"""Which failures are tried again, after what, and until when."""

from uuid import UUID

import pytest

from millstream.client.errors import (
    AnswerUnreadable,
    BrokersUnreachable,
    ClientClosed,
    DeadlinePassed,
    NotSupported,
    OutcomeUnknown,
    RequestRefused,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.retries import (
    Attempts,
    Deadline,
    Failure,
    Remedy,
    as_client_error,
    remedy_for,
)
from millstream.model.ids import TopicId
from millstream.rpc.backoff import Backoff
from millstream.rpc.errors import (
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedApiVersion,
)
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.primitives import MalformedFrame

REFRESH = Remedy.BACK_OFF | Remedy.REFRESH
LOST = ConnectionLost("a:1", "gone", may_have_been_processed=True)
NEVER_SENT = ConnectionLost("a:1", "gone", may_have_been_processed=False)
TOO_OLD = UnsupportedApiVersion(ApiKey.FETCH, ours=range(4, 18), theirs=range(3))


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, REFRESH),
        (ErrorCode.FENCED_LEADER_EPOCH, REFRESH),
        (ErrorCode.UNKNOWN_TOPIC_ID, REFRESH),
        (ErrorCode.NOT_CONTROLLER, REFRESH),
        (ErrorCode.NOT_ENOUGH_REPLICAS, Remedy.BACK_OFF),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Remedy.BACK_OFF),
        (ErrorCode.NOT_COORDINATOR, Remedy.BACK_OFF | Remedy.FIND_COORDINATOR),
        (ErrorCode.REBOOTSTRAP_REQUIRED, Remedy.BACK_OFF | Remedy.BOOTSTRAP),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Remedy.GIVE_UP),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Remedy.GIVE_UP),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Remedy.GIVE_UP),
        (LOST, REFRESH | Remedy.FIND_COORDINATOR),
        (ConnectFailed("a:1", "refused"), REFRESH | Remedy.FIND_COORDINATOR),
        (BrokersUnreachable({}), Remedy.BACK_OFF),
        (TOO_OLD, Remedy.GIVE_UP),
        (MalformedFrame("cut off"), Remedy.GIVE_UP),
        (ClientClosed(), Remedy.GIVE_UP),
        (
            TopicRecreated("t", old_id=TopicId(UUID(int=1)), new_id=TopicId(UUID(int=2))),
            Remedy.GIVE_UP,
        ),
        (TopicUnknown("t"), REFRESH),
    ],
    ids=str,
)
def test_remedies(failure: Failure, remedy: Remedy) -> None:
    assert remedy_for(failure) == remedy
    assert remedy.is_retry == (remedy is not Remedy.GIVE_UP)


def test_every_code_that_kafka_retries_is_retried() -> None:
    for code in ErrorCode:
        if code.is_retriable:
            assert remedy_for(code).is_retry, code.name


def test_what_may_have_been_done_is_repeated_only_where_that_does_no_harm() -> None:
    for error in (LOST, RequestTimedOut("a:1", may_have_been_processed=True)):
        assert remedy_for(error).is_retry
        assert not remedy_for(error, may_repeat=False).is_retry
    assert remedy_for(NEVER_SENT, may_repeat=False).is_retry


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ErrorCode.INVALID_REQUEST, RequestRefused),
        (TOO_OLD, NotSupported),
        (MalformedFrame("cut off"), AnswerUnreadable),
        (LOST, OutcomeUnknown),
    ],
)
def test_failures_become_errors_of_the_client(failure: Failure, kind: type[Exception]) -> None:
    error = as_client_error(failure, "fetch")
    assert type(error) is kind
    assert "fetch" in str(error)


def made(within_s: float, *, unknown_s: float = 1.0) -> Attempts:
    deadline = Deadline.after(within_s, now_s=100.0, what="test")
    backoff = Backoff(initial_s=1.0, max_s=4.0, factor=2.0, jitter=0.0)
    return Attempts(deadline, backoff, SeededRandomness(1), unknown_until_s=100.0 + unknown_s)


def test_pauses_grow_and_the_last_failure_is_told_at_the_end() -> None:
    attempts = made(20)
    now_s, pauses = 100.0, []
    for _ in range(6):
        pauses.append(attempts.failed(ErrorCode.NOT_CONTROLLER, now_s=now_s))
        now_s += pauses[-1]
    assert pauses == [1, 2, 4, 4, 4, 4]
    assert now_s < 120
    with pytest.raises(DeadlinePassed, match=r"test: timed out after 20 s.*NOT_CONTROLLER") as told:
        attempts.failed(ErrorCode.NOT_CONTROLLER, now_s=now_s)
    assert told.value.last_error is ErrorCode.NOT_CONTROLLER


def test_unreachable_brokers_stay_what_they_are_when_time_is_up() -> None:
    with pytest.raises(BrokersUnreachable, match=r"within 0.5 s \(a:1: refused\)"):
        made(0.5).failed(BrokersUnreachable({"a:1": "refused"}), now_s=100.0)


def test_the_error_that_ended_it_is_the_cause() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        made(0.5).failed(LOST, now_s=100.0)
    assert caught.value.__cause__ is LOST


def test_an_unknown_topic_is_believed_after_the_grace() -> None:
    attempts = made(20)
    assert attempts.remedy(TopicUnknown("t"), now_s=100.9).is_retry
    assert not attempts.remedy(TopicUnknown("t"), now_s=101.0).is_retry
    assert attempts.remedy(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, now_s=105.0).is_retry


def test_time_that_is_left() -> None:
    deadline = Deadline.after(5, now_s=100.0, what="test")
    assert deadline.left_s(103) == 2
    assert deadline.left_s(106) == 0
