"""Exponential backoff with jitter, so that a thousand clients do not reconnect at once.

Pure: time and randomness are passed in.
"""

from dataclasses import dataclass

from millstream.runtime.randomness import Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Kafka's `reconnect.backoff.ms` and `reconnect.backoff.max.ms` with its jitter."""

    initial_s: float = 0.05
    max_s: float = 1.0
    factor: float = 2.0
    jitter: float = 0.2
    """Each delay is longer or shorter by up to this fraction, but never above `max_s`."""

    def delay_s(self, failures: int, randomness: Randomness) -> float:
        """How long to wait after so many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded: a float overflows after a thousand failures.
        base_s = min(self.max_s, self.initial_s * self.factor ** min(failures - 1, 64))
        part = randomness.between(1 - self.jitter, 1 + self.jitter)
        return min(self.max_s, base_s * part)


class Attempts:
    """The attempts to reach one peer."""

    __slots__ = ("_backoff", "_randomness", "failures", "not_before_s")

    def __init__(self, backoff: Backoff, randomness: Randomness) -> None:
        self._backoff = backoff
        self._randomness = randomness
        self.failures = 0
        """Consecutive failures."""
        self.not_before_s = float("-inf")
        """When the next attempt may start, by the clock whose times are passed in."""

    def record_failure(self, *, now_s: float) -> None:
        self.failures += 1
        self.not_before_s = now_s + self._backoff.delay_s(self.failures, self._randomness)

    def record_success(self) -> None:
        self.failures = 0
        self.not_before_s = float("-inf")

    def wait_s(self, *, now_s: float) -> float:
        """How long until the next attempt may start; 0: now."""
        return max(0.0, self.not_before_s - now_s)
