"""When to try again: exponential, with jitter, so that a thousand clients do not come at once.

Pure: time and randomness are handed in.
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
    """Each delay is this part longer or shorter; the longest is never above `max_s`."""

    def delay_s(self, failures: int, randomness: Randomness) -> float:
        """How long to wait after so many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded: a float overflows after a thousand failures.
        plain_s = min(self.max_s, self.initial_s * self.factor ** min(failures - 1, 64))
        part = randomness.between(1 - self.jitter, 1 + self.jitter)
        return min(self.max_s, plain_s * part)


class Attempts:
    """The attempts to reach one peer."""

    __slots__ = ("_backoff", "_randomness", "failures", "not_before_s")

    def __init__(self, backoff: Backoff, randomness: Randomness) -> None:
        self._backoff = backoff
        self._randomness = randomness
        self.failures = 0
        """In a row."""
        self.not_before_s = float("-inf")
        """When the next attempt may begin, by the clock whose times are handed in."""

    def failed(self, *, now_s: float) -> None:
        self.failures += 1
        self.not_before_s = now_s + self._backoff.delay_s(self.failures, self._randomness)

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before_s = float("-inf")

    def wait_s(self, *, now_s: float) -> float:
        """How long until the next attempt may begin; 0 when it may now."""
        return max(0.0, self.not_before_s - now_s)
