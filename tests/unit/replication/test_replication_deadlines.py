"""One timer ends everything that waits too long, and nothing that ended stays for long."""

from kits.broker.data_plane import ManualTimers
from millstream.replication.deadlines import RECHECK_INTERVAL_S, SWEEP_COUNT_MIN, Deadlines
from millstream.testing.sim.clock import ManualClock


class Waiting:
    def __init__(self, told: list[str], name: str = "") -> None:
        self.told, self.name = told, name
        self.over = False

    def is_over(self) -> bool:
        return self.over

    def expire(self) -> None:
        self.told.append(self.name)


def test_operations_expire_at_their_time_and_in_order() -> None:
    clock = ManualClock()
    timers = ManualTimers(clock)
    deadlines, told = Deadlines(timers), []  # type: tuple[Deadlines, list[str]]
    for name, timeout_ms in (("late", 50), ("soon", 10), ("middle", 20)):
        deadlines.add(Waiting(told, name), timeout_ms=timeout_ms)
    timers.pass_time(9)
    assert told == []
    timers.pass_time(1)
    assert told == ["soon"]
    timers.pass_time(10)
    assert told == ["soon", "middle"]
    timers.pass_time(30)
    assert told == ["soon", "middle", "late"]
    assert len(deadlines) == 0
    assert timers.armed == 0


def test_there_is_one_timer_however_many_wait() -> None:
    timers = ManualTimers(ManualClock())
    deadlines = Deadlines(timers)
    for number in range(100):
        deadlines.add(Waiting([]), timeout_ms=1000 - number)
    assert timers.armed == 1


def test_what_is_over_does_not_expire() -> None:
    timers = ManualTimers(ManualClock())
    deadlines, told = Deadlines(timers), []  # type: tuple[Deadlines, list[str]]
    operation = Waiting(told, "x")
    deadlines.add(operation, timeout_ms=5)
    operation.over = True
    timers.pass_time(10)
    assert told == []


def test_what_another_ends_at_the_same_time_does_not_expire() -> None:
    """I-36. A follower's late answer moves the high watermark, which answers a consumer's fetch
    that is due in the same moment: it must not be answered twice.
    """
    timers = ManualTimers(ManualClock())
    deadlines, told = Deadlines(timers), []  # type: tuple[Deadlines, list[str]]
    consumer = Waiting(told, "consumer")

    class Follower(Waiting):
        def expire(self) -> None:
            super().expire()
            consumer.over = True
            deadlines.note_over()

    deadlines.add(Follower(told, "follower"), timeout_ms=5)
    deadlines.add(consumer, timeout_ms=5)
    timers.pass_time(10)
    assert told == ["follower"]


def test_operations_that_ended_early_are_swept_out() -> None:
    """I-37. Each fetch of a busy consumer waits for days and is over in a moment."""
    deadlines = Deadlines(ManualTimers(ManualClock()))
    for _ in range(10 * SWEEP_COUNT_MIN):
        operation = Waiting([])
        deadlines.add(operation, timeout_ms=2**31 - 1)
        operation.over = True
        deadlines.note_over()
    assert len(deadlines) < 2 * SWEEP_COUNT_MIN


def test_operations_of_clients_that_are_gone_are_let_go_soon() -> None:
    """I-37. Nobody calls for them: they are looked at every few seconds."""
    timers = ManualTimers(ManualClock())
    deadlines, told = Deadlines(timers), []  # type: tuple[Deadlines, list[str]]
    gone, there = Waiting(told, "gone"), Waiting(told, "there")
    deadlines.add(gone, timeout_ms=100_000_000)
    deadlines.add(there, timeout_ms=int(RECHECK_INTERVAL_S * 2500))
    gone.over = True
    timers.pass_time(int(RECHECK_INTERVAL_S * 1000))
    assert len(deadlines) == 1
    timers.pass_time(int(RECHECK_INTERVAL_S * 1500))
    assert told == ["there"]


def test_an_operation_may_add_another_when_it_expires() -> None:
    timers = ManualTimers(ManualClock())
    deadlines, told = Deadlines(timers), []  # type: tuple[Deadlines, list[str]]

    class Chained(Waiting):
        def expire(self) -> None:
            super().expire()
            if len(told) < 3:
                deadlines.add(self, timeout_ms=5)

    deadlines.add(Chained(told, "again"), timeout_ms=5)
    timers.pass_time(30)
    assert told == ["again"] * 3
