"""I-11 over plain values: what may be left of a log when its process comes back."""

import pytest

from millstream.testing.history.cluster_views import BatchView
from millstream.testing.simulation.cluster.recovery import LogFate, LogFound, check_recovery

BATCHES = [BatchView(number, number + 1, 1, 100 + number) for number in range(6)]


def fate(*, durable: int = 4, start: int = 0) -> LogFate:
    return LogFate("t-0", start, 6, durable, BATCHES)


def found(end: int, *, start: int = 0) -> LogFound:
    return LogFound(start, end, BATCHES[start:end])


@pytest.mark.parametrize("end", [4, 5, 6])
@pytest.mark.parametrize("start", [0, 2])
def test_a_prefix_with_all_that_was_durable_is_right(end: int, start: int) -> None:
    assert not list(check_recovery(fate(), found(end, start=start)))


def test_a_log_of_which_nothing_was_durable_may_be_gone() -> None:
    assert not list(check_recovery(fate(durable=0), None))
    assert not list(check_recovery(fate(durable=2, start=2), None))


@pytest.mark.parametrize(
    "now",
    [
        None,
        found(3),
        LogFound(0, 7, [*BATCHES, BatchView(6, 7, 1, 9)]),
        LogFound(0, 5, [*BATCHES[:4], BatchView(4, 5, 1, 9)]),
        LogFound(0, 5, [*BATCHES[:2], *BATCHES[3:5]]),
    ],
    ids=["gone", "less", "more", "another", "a hole"],
)
def test_anything_else_is_told(now: LogFound | None) -> None:
    text = [str(one) for one in check_recovery(fate(), now)]
    assert text
    assert all(one.startswith("I-11 t-0") for one in text)
