"""Finds the topics that patterns match, in bounded steps.

A cluster may have many thousands of topics; the event loop serves other requests between steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millstream.groups.consumer.regex_automaton import TopicRegex

WORK_MAX: Final = 50_000
"""States of automatons that one step may create or visit: some ten milliseconds."""
NAME_WORK: Final = 10
CHARACTERS_OF_WORK: Final = 2
"""The cost of a name when all its transitions are cached: a dict access per character."""


class RegexJob:
    """Matches all patterns of one group against all topics, pattern by pattern.

    So only one automaton exists at a time, and a step is short however many patterns there are.
    """

    __slots__ = ("_found", "_steps", "version")

    def __init__(self, patterns: Iterable[str], names: Iterable[str], version: int) -> None:
        self._found: dict[str, set[str]] = {one: set() for one in patterns}
        self._steps = self._match_steps(list(names))
        self.version = version
        """The version of the topics when the job started."""

    def step(self) -> dict[str, frozenset[str]] | None:
        """Continue; return the topics of each pattern when all names have been matched."""
        work = 0
        for done in self._steps:
            work += done
            if work > WORK_MAX:
                return None
        return {pattern: frozenset(names) for pattern, names in self._found.items()}

    def _match_steps(self, names: Sequence[str]) -> Iterator[int]:
        """Yields the cost of each step after it is done."""
        for pattern, found in self._found.items():
            regex = TopicRegex(pattern)
            yield regex.state_count
            before = 0
            for name in names:
                if regex.matches(name):
                    found.add(name)
                yield NAME_WORK + len(name) // CHARACTERS_OF_WORK + regex.work - before
                before = regex.work
