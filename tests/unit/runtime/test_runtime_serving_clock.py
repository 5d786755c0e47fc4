"""Time in which the loop was stalled does not count for deadlines of others."""

import pytest

from millstream.runtime.serving_clock import STEP_MAX_S, ServingClock
from millstream.testing.sim.clock import ManualClock

TICK_MS = 250


class Scene:
    """A clock, and what the clients of a broker see of it."""

    def __init__(self) -> None:
        self.real = ManualClock()
        self.serving = ServingClock(self.real)
        self.seen: list[float] = []

    def run(self, ms: int) -> None:
        """The loop runs, and ticks."""
        for _ in range(ms // TICK_MS):
            self.real.advance(TICK_MS)
            self.serving.tick()
            self.seen.append(self.serving.monotonic_s())

    def stall(self, ms: int) -> None:
        """Only the time goes on; it may be read before the first tick."""
        for _ in range(ms // TICK_MS):
            self.real.advance(TICK_MS)
            self.seen.append(self.serving.monotonic_s())


def test_it_is_the_real_time_while_the_loop_runs() -> None:
    scene = Scene()
    scene.run(10_000)
    assert scene.serving.monotonic_s() == pytest.approx(10.0)
    assert scene.serving.wall_ms() == scene.real.wall_ms()


def test_of_a_stall_only_the_longest_usual_step_counts() -> None:
    """Also before the tick: the timers that are due then are the ones that matter."""
    scene = Scene()
    scene.run(1000)
    scene.stall(5000)
    assert scene.serving.monotonic_s() == pytest.approx(1.0 + STEP_MAX_S)
    scene.serving.tick()
    scene.run(1000)
    assert scene.serving.monotonic_s() == pytest.approx(1.0 + STEP_MAX_S + 1.0)


def test_it_never_goes_back() -> None:
    scene = Scene()
    for stall_ms in (500, 750, 1000, 60_000, 250):
        scene.run(1000)
        scene.stall(stall_ms)
    scene.serving.stop()
    scene.stall(10_000)
    assert scene.seen == sorted(scene.seen)


def test_a_short_delay_is_no_stall() -> None:
    scene = Scene()
    scene.run(1000)
    scene.stall(500)
    scene.run(1000)
    assert scene.serving.monotonic_s() == pytest.approx(2.5)


def test_without_ticks_it_goes_on() -> None:
    """Before the broker has started, and while it stops."""
    scene = Scene()
    scene.stall(10_000)
    assert scene.serving.monotonic_s() == pytest.approx(10.0)
    scene.serving.tick()
    scene.run(1000)
    scene.serving.stop()
    scene.stall(10_000)
    assert scene.serving.monotonic_s() == pytest.approx(21.0)
