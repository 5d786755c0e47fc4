"""Finding the topics that patterns stand for, a bounded piece of work at a time.

A cluster may have many thousands of topics, and the event loop serves everybody in between.
"""

from collections.abc import Iterable
from typing import Final

from millstream.groups.consumer.regex_automaton import TopicRegex

WORK_MAX: Final = 50_000
"""Places of automatons that one step may look at: some ten milliseconds."""
NAME_WORK: Final = 10
"""What a name costs when all its steps are known."""


class RegexJob:
    """All patterns of one group against all topics."""

    __slots__ = ("_found", "_names", "_regexes", "version")

    def __init__(self, patterns: Iterable[str], names: Iterable[str], version: int) -> None:
        self._regexes = [TopicRegex(one) for one in patterns]
        self._found: dict[str, set[str]] = {one.pattern: set() for one in self._regexes}
        self._names = iter(list(names))
        self.version = version
        """Of the topics when it began."""

    def step(self) -> dict[str, frozenset[str]] | None:
        """The topics of each pattern, when all has been looked at."""
        budget = WORK_MAX + sum(one.work for one in self._regexes)
        names_work = 0
        for name in self._names:
            for regex in self._regexes:
                if regex.matches(name):
                    self._found[regex.pattern].add(name)
            names_work += NAME_WORK * len(self._regexes)
            if names_work + sum(one.work for one in self._regexes) > budget:
                return None
        return {pattern: frozenset(names) for pattern, names in self._found.items()}
