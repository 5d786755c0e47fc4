"""When a loop counts as hung, when it is only busy, and when its whole process was stopped."""

import threading
import time
from collections.abc import Sequence

import pytest

from kits.process.waiting_for import until
from millstream.coordination.watchdog import (
    BLOCKED_TIMEOUTS,
    BUSY_TIMEOUTS,
    CHECKS_PER_TIMEOUT,
    CPU_SHARE_MIN,
    Hang,
    LoopWatchdog,
    interval_s,
)
from millstream.runtime.clock import thread_cpu_clock

TIMEOUT_S = 6.0
STEP_S = interval_s(TIMEOUT_S)
BLOCKED_STEPS = BLOCKED_TIMEOUTS * CHECKS_PER_TIMEOUT
BUSY_STEPS = BUSY_TIMEOUTS * CHECKS_PER_TIMEOUT
IDLE, WORKING, WAITING_IN_SMALL_STEPS = 0.0, 1.0, CPU_SHARE_MIN / 2
"""Shares of a CPU."""


def verdicts(stamps: Sequence[int], shares: Sequence[float]) -> list[Hang | None]:
    """Of a check after each step, with the loop's stamp then and its CPU use in that step."""
    watchdog = LoopWatchdog(now_s=0.0, cpu_s=0.0)
    cpu_s = 0.0
    found: list[Hang | None] = []
    for number, (stamp, share) in enumerate(zip(stamps, shares, strict=True), 1):
        cpu_s += share * STEP_S
        now_s = number * STEP_S
        found.append(watchdog.check(stamp=stamp, cpu_s=cpu_s, now_s=now_s, timeout_s=TIMEOUT_S))
    return found


def first(found: list[Hang | None]) -> tuple[int, Hang] | None:
    """The silent steps before the first verdict, and the verdict."""
    return next(((at - 1, one) for at, one in enumerate(found) if one is not None), None)


@pytest.mark.parametrize("share", [IDLE, WORKING])
def test_a_loop_that_stamps_is_alive(share: float) -> None:
    assert first(verdicts(range(1, 200), [share] * 199)) is None


@pytest.mark.parametrize(
    ("share", "steps", "how"),
    [
        (IDLE, BLOCKED_STEPS, Hang.BLOCKED),
        (WAITING_IN_SMALL_STEPS, BLOCKED_STEPS, Hang.BLOCKED),
        (CPU_SHARE_MIN, BUSY_STEPS, Hang.BUSY),
        (WORKING, BUSY_STEPS, Hang.BUSY),
    ],
)
def test_a_silent_loop_hangs_after_its_limit(share: float, steps: int, how: Hang) -> None:
    assert first(verdicts([1] * 100, [share] * 100)) == (steps, how)


@pytest.mark.parametrize("share", [IDLE, WORKING])
def test_five_seconds_of_silence_are_no_hang_with_the_default_timeout(share: float) -> None:
    steps = round(5.0 / STEP_S)
    stamps = [1, *[1] * steps, *range(2, 10)]
    assert first(verdicts(stamps, [share] * len(stamps))) is None


def test_a_loop_that_works_now_and_then_is_not_blocked() -> None:
    """It waits for something slow again and again; the limit for all of its silence remains."""
    shares = ([IDLE] * (BLOCKED_STEPS - 1) + [WORKING]) * 4
    assert first(verdicts([1] * len(shares), shares)) == (BUSY_STEPS, Hang.BUSY)


def test_one_stamp_is_enough_to_start_anew() -> None:
    stamps = [number // BLOCKED_STEPS for number in range(1, 200)]
    assert first(verdicts(stamps, [IDLE] * len(stamps))) is None


def test_time_in_which_the_watchdog_slept_too_does_not_count() -> None:
    """A process that was stopped and woken: both were still, and the loop gets its chance."""
    watchdog = LoopWatchdog(now_s=0.0, cpu_s=0.0)
    for stamp, now_s in ((1, STEP_S), (1, 1000.0), (2, 1000.0 + STEP_S)):
        assert watchdog.check(stamp=stamp, cpu_s=0.0, now_s=now_s, timeout_s=TIMEOUT_S) is None


def test_the_cpu_time_of_another_thread_tells_work_from_waiting() -> None:
    may_work, may_end = threading.Event(), threading.Event()

    def work() -> None:
        may_work.wait()
        while not may_end.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert thread.ident is not None
    read = thread_cpu_clock(thread.ident)
    before_s = read()
    time.sleep(0.05)
    assert read() - before_s < 0.04, "it waits"
    may_work.set()
    until(lambda: read() - before_s > 0.1, "it works")
    may_end.set()
    thread.join()
    until(lambda: read() == 0.0, "it has ended")
