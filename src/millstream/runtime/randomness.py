"""The randomness seam: every random decision comes from here, so that a seed replays a run."""

import os
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

Octets = bytes
"""For annotations beside a method that is called `bytes`."""


class Randomness(Protocol):
    """A source of random decisions; only `secret` is for what must not be guessed."""

    def between(self, low: float, high: float) -> float:
        """A number in [low, high]; the jitter of timeouts."""

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high)."""

    def chance(self, probability: float) -> bool:
        """True with the given probability."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, which must not be empty."""

    def bytes(self, size: int) -> bytes:
        """`size` random bytes; for ids that must not collide."""

    def secret(self, size: int) -> Octets:
        """`size` bytes that cannot be guessed, whatever else of this source is known."""


class SeededRandomness:
    """A stream that depends only on its seed, also across processes and hash seeds."""

    __slots__ = ("_source", "seed")

    def __init__(self, seed: int | str | bytes) -> None:
        self.seed = seed
        self._source = random.Random(seed)  # noqa: S311 - decisions, not secrets

    def between(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def integer(self, low: int, high: int) -> int:
        return self._source.randrange(low, high)

    def chance(self, probability: float) -> bool:
        return self._source.random() < probability

    def choice(self, options: Sequence[T]) -> T:
        return self._source.choice(options)

    def bytes(self, size: int) -> bytes:
        return self._source.randbytes(size)

    def secret(self, size: int) -> Octets:
        """Of a seeded run: it can be replayed, so nothing in it is secret."""
        return self._source.randbytes(size)

    def fork(self, name: str) -> "SeededRandomness":
        """A stream of its own for one component.

        What one component draws then never shifts what another one gets.
        """
        # Not the repr of a str: each level would escape the quotes of the last, doubling them.
        seed = self.seed if isinstance(self.seed, str) else repr(self.seed)
        return SeededRandomness(f"{seed}/{name}")


class SystemRandomness(SeededRandomness):
    """The real source. Its ids are seen by clients, who could compute the rest of the stream from
    enough of them; so secrets come from the system.
    """

    __slots__ = ()

    def secret(self, size: int) -> Octets:
        return os.urandom(size)


def system_randomness() -> SeededRandomness:
    """The real source: a seed of its own for every process."""
    return SystemRandomness(os.urandom(32))
