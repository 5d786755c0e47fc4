"""Runs a pattern over topic names in time that is proportional to the name, whatever the pattern.

The tree becomes an automaton in which several places can be held at once; a set of places with the
character that comes next leads to another set, and each such step is remembered, so that the second
name costs a dict access per character. Sets of places are never more than the automaton has steps
times characters, and the memory of them is emptied when it has grown too large.
"""

from typing import Final, NamedTuple

from millstream.groups.consumer.regex_syntax import (
    Anchor,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    parse,
)
from millstream.groups.errors import InvalidRegularExpression

PLACES_MAX: Final = 1_500
"""Of one automaton: six times the longest topic name, which bounds what one name can cost."""
REMEMBERED_MAX: Final = 2_000
"""Steps that are kept; a pattern of the usual kind has a few dozen."""

_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class _Place(NamedTuple):
    """Either a character and one way on, or (without) ways on that cost nothing."""

    chars: frozenset[str] | None
    ways: tuple[int, ...]
    anchor: str | None = None


class TopicRegex:
    """A compiled pattern; raises InvalidRegularExpression when it cannot be."""

    __slots__ = ("_accepting", "_places", "_sets", "_start", "_steps", "pattern", "work")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.work = 0
        """Places that were looked at so far; whoever has much to match goes by it."""
        self._places: list[_Place] = []
        self._accepting = self._add(_Place(None, ()))
        self._start = self._compile(parse(pattern), self._accepting)
        self._steps: dict[tuple[frozenset[int], bool, str], frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}

    @property
    def place_count(self) -> int:
        """What it cost to make."""
        return len(self._places)

    def matches(self, name: str) -> bool:
        """The whole name."""
        held = frozenset((self._start,))
        is_word_before, is_first = False, True
        for char in name:
            key = (held, is_word_before, ("^" if is_first else "") + char)
            after = self._steps.get(key)
            if after is None:
                after = self._step(key, char, is_first=is_first)
            if not after:
                return False
            held, is_word_before, is_first = after, char in _WORD, False
        key = (held, is_word_before, "^" if is_first else "")  # no character: the end
        ends = self._steps.get(key)
        if ends is None:
            ends = self._step(key, None, is_first=is_first)
        return bool(ends)

    def _step(
        self, key: tuple[frozenset[int], bool, str], char: str | None, *, is_first: bool
    ) -> frozenset[int]:
        """Where the character leads to; without one, the accepting place if it is reached."""
        held, is_word_before, _ = key
        spread = self._spread(held, start=is_first, before=is_word_before, after=char)
        self.work += len(spread)
        if char is None:
            after = frozenset(spread & {self._accepting})
        else:
            places = [self._places[one] for one in spread]
            after = frozenset(one.ways[0] for one in places if char in (one.chars or ()))
        if len(self._steps) >= REMEMBERED_MAX:
            self._steps.clear()
            self._sets.clear()
        # The very same set for the same places: to compare two of a thousand takes microseconds.
        after = self._steps[key] = self._sets.setdefault(after, after)
        return after

    def _spread(
        self, held: frozenset[int], *, start: bool, before: bool, after: str | None
    ) -> set[int]:
        """All places that can be reached without a character."""
        seen, todo = set(held), list(held)
        while todo:
            place = self._places[todo.pop()]
            if place.chars is not None or not _holds(place.anchor, start, before, after):
                continue
            new = [one for one in place.ways if one not in seen]
            seen.update(new)
            todo += new
        return seen

    # -- compiling: every function gives the place where its node begins --------------------------

    def _add(self, place: _Place) -> int:
        if len(self._places) >= PLACES_MAX:
            raise InvalidRegularExpression(f"The pattern `{self.pattern}` is too large.")
        self._places.append(place)
        return len(self._places) - 1

    def _compile(self, node: Node, then: int) -> int:
        match node:
            case Chars(of):
                return self._add(_Place(of, (then,)))
            case Anchor(kind):
                return self._add(_Place(None, (then,), kind))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case Choice(options):
                ways = tuple([self._compile(one, then) for one in options])
                return self._add(_Place(None, ways))
            case Repeat(part, low, high):
                return self._compile_repeat(part, low, high, then)

    def _compile_repeat(self, part: Node, low: int, high: int | None, then: int) -> int:
        if high is None:
            loop = self._add(_Place(None, ()))
            body = self._compile(part, loop)
            self._places[loop] = _Place(None, (body, then))
            begin = loop
        else:
            begin = then
            for _ in range(high - low):
                body = self._compile(part, begin)
                begin = self._add(_Place(None, (body, then)))
        for _ in range(low):
            begin = self._compile(part, begin)
        return begin


def _holds(anchor: str | None, start: bool, before: bool, after: str | None) -> bool:  # noqa: FBT001
    if anchor is None:
        return True
    if anchor == "start":
        return start
    if anchor == "end":
        return after is None
    is_boundary = before != (after is not None and after in _WORD)
    return is_boundary == (anchor == "boundary")
