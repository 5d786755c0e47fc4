"""Finding the topics that patterns stand for, a bounded piece of work at a time.

A cluster may have many thousands of topics, and the event loop serves everybody in between.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millstream.groups.consumer.regex_automaton import TopicRegex

WORK_MAX: Final = 50_000
"""Places of automatons that one step may make or look at: some ten milliseconds."""
NAME_WORK: Final = 10
CHARACTERS_OF_WORK: Final = 2
"""What a name costs when all its steps are known: a look-up for each character."""


class RegexJob:
    """All patterns of one group against all topics, pattern by pattern.

    So only one automaton is there at a time, and a step ends soon however many patterns there are.
    """

    __slots__ = ("_found", "_pieces", "version")

    def __init__(self, patterns: Iterable[str], names: Iterable[str], version: int) -> None:
        self._found: dict[str, set[str]] = {one: set() for one in patterns}
        self._pieces = self._working(list(names))
        self.version = version
        """Of the topics when it began."""

    def step(self) -> dict[str, frozenset[str]] | None:
        """The topics of each pattern, when all has been looked at."""
        work = 0
        for piece in self._pieces:
            work += piece
            if work > WORK_MAX:
                return None
        return {pattern: frozenset(names) for pattern, names in self._found.items()}

    def _working(self, names: Sequence[str]) -> Iterator[int]:
        """Gives the work of each piece after it is done."""
        for pattern, found in self._found.items():
            regex = TopicRegex(pattern)
            yield regex.place_count
            before = 0
            for name in names:
                if regex.matches(name):
                    found.add(name)
                yield NAME_WORK + len(name) // CHARACTERS_OF_WORK + regex.work - before
                before = regex.work
