"""When a loop counts as hung, and when its whole process was merely stopped."""

from millstream.coordination.watchdog import LoopWatchdog, interval_s

LIMIT_S = 2.0
STEP_S = interval_s(LIMIT_S)


def test_a_loop_that_stamps_is_alive() -> None:
    watchdog = LoopWatchdog(now_s=0.0)
    for number in range(1, 100):
        assert not watchdog.is_hung(stamp=number, now_s=number * STEP_S, limit_s=LIMIT_S)


def test_a_loop_that_is_silent_for_longer_than_the_limit_is_hung() -> None:
    watchdog = LoopWatchdog(now_s=0.0)
    looks = [
        watchdog.is_hung(stamp=1, now_s=number * STEP_S, limit_s=LIMIT_S) for number in range(7)
    ]
    assert looks == [False, False, False, False, False, True, True]


def test_one_stamp_is_enough_to_start_anew() -> None:
    watchdog = LoopWatchdog(now_s=0.0)
    for number in range(1, 50):
        is_hung = watchdog.is_hung(stamp=number // 4, now_s=number * STEP_S, limit_s=LIMIT_S)
        assert not is_hung


def test_time_in_which_the_watchdog_slept_too_does_not_count() -> None:
    """A process that was stopped and woken: both were still, and the loop gets its chance."""
    watchdog = LoopWatchdog(now_s=0.0)
    assert not watchdog.is_hung(stamp=1, now_s=STEP_S, limit_s=LIMIT_S)
    assert not watchdog.is_hung(stamp=1, now_s=100.0, limit_s=LIMIT_S)
    assert not watchdog.is_hung(stamp=2, now_s=100.0 + STEP_S, limit_s=LIMIT_S)
