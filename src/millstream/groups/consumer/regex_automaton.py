"""Matches topic names in time proportional to the name, whatever the pattern.

The syntax tree becomes a nondeterministic automaton, which is made deterministic while it runs: a
set of states and the next character lead to another set, and each such transition is cached, so
that the second name costs a dict access per character. The cache is cleared when it has grown too
large.
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

STATES_MAX: Final = 1_500
"""States of one automaton: six times the longest topic name; bounds the cost of one name."""
TRANSITIONS_MAX: Final = 2_000
"""Cached transitions; a usual pattern has a few dozen."""

_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


class _State(NamedTuple):
    """Either characters and one target, or (without characters) targets of empty transitions."""

    chars: frozenset[str] | None
    targets: tuple[int, ...]
    anchor: str | None = None


class TopicRegex:
    """A compiled pattern; raises InvalidRegularExpression."""

    __slots__ = ("_accepting", "_interned", "_start", "_states", "_transitions", "pattern", "work")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.work = 0
        """States visited so far; a caller that matches many names bounds its work by it."""
        self._states: list[_State] = []
        self._accepting = self._add(_State(None, ()))
        self._start = self._compile(parse(pattern), self._accepting)
        self._transitions: dict[tuple[frozenset[int], bool, str], frozenset[int]] = {}
        self._interned: dict[frozenset[int], frozenset[int]] = {}

    @property
    def state_count(self) -> int:
        """The cost of compiling it."""
        return len(self._states)

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        held = frozenset((self._start,))
        is_word_before, is_first = False, True
        for char in name:
            key = (held, is_word_before, ("^" if is_first else "") + char)
            after = self._transitions.get(key)
            if after is None:
                after = self._transition(key, char, is_first=is_first)
            if not after:
                return False
            held, is_word_before, is_first = after, char in _WORD, False
        key = (held, is_word_before, "^" if is_first else "")  # no character: the end
        ends = self._transitions.get(key)
        if ends is None:
            ends = self._transition(key, None, is_first=is_first)
        return bool(ends)

    def _transition(
        self, key: tuple[frozenset[int], bool, str], char: str | None, *, is_first: bool
    ) -> frozenset[int]:
        """The states after the character; without one (the end), the accepting state if reached."""
        held, is_word_before, _ = key
        closure = self._closure(held, start=is_first, before=is_word_before, after=char)
        self.work += len(closure)
        if char is None:
            after = frozenset(closure & {self._accepting})
        else:
            states = [self._states[one] for one in closure]
            after = frozenset(one.targets[0] for one in states if char in (one.chars or ()))
        if len(self._transitions) >= TRANSITIONS_MAX:
            self._transitions.clear()
            self._interned.clear()
        # The same object for the same states: comparing two sets of a thousand takes microseconds.
        after = self._transitions[key] = self._interned.setdefault(after, after)
        return after

    def _closure(
        self, held: frozenset[int], *, start: bool, before: bool, after: str | None
    ) -> set[int]:
        """All states that can be reached by empty transitions."""
        seen, todo = set(held), list(held)
        while todo:
            state = self._states[todo.pop()]
            if state.chars is not None or not _anchor_matches(state.anchor, start, before, after):
                continue
            new = [one for one in state.targets if one not in seen]
            seen.update(new)
            todo += new
        return seen

    # -- compiling: every function returns the state where its node begins ------------------------

    def _add(self, state: _State) -> int:
        if len(self._states) >= STATES_MAX:
            raise InvalidRegularExpression(f"The pattern `{self.pattern}` is too large.")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: Node, then: int) -> int:
        match node:
            case Chars(of):
                return self._add(_State(of, (then,)))
            case Anchor(kind):
                return self._add(_State(None, (then,), kind))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case Choice(options):
                targets = tuple([self._compile(one, then) for one in options])
                return self._add(_State(None, targets))
            case Repeat(part, low, high):
                return self._compile_repeat(part, low, high, then)

    def _compile_repeat(self, part: Node, low: int, high: int | None, then: int) -> int:
        if high is None:
            loop = self._add(_State(None, ()))
            body = self._compile(part, loop)
            self._states[loop] = _State(None, (body, then))
            begin = loop
        else:
            begin = then
            for _ in range(high - low):
                body = self._compile(part, begin)
                begin = self._add(_State(None, (body, then)))
        for _ in range(low):
            begin = self._compile(part, begin)
        return begin


def _anchor_matches(anchor: str | None, start: bool, before: bool, after: str | None) -> bool:  # noqa: FBT001
    if anchor is None:
        return True
    if anchor == "start":
        return start
    if anchor == "end":
        return after is None
    is_boundary = before != (after is not None and after in _WORD)
    return is_boundary == (anchor == "boundary")
