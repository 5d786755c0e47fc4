r"""Parser for the regular expressions of subscriptions, in RE2's syntax.

Kafka compiles them with RE2/J, because RE2 matches in time proportional to the text whatever the
pattern. Python's `re` does not, and a pattern comes from a client: so this parses RE2's syntax, and
`regex_automaton` matches without backtracking. As topic names consist of ASCII letters, digits,
dot, underscore and hyphen, every character class is a set of those.

Where we differ from RE2/J:
- names of Unicode scripts (`\p{Greek}`) are not checked: one that we do not know matches nothing;
- flags are read anywhere, but a flag group like `(?i)` applies to the end of its group, as there;
- the limits on size are our own (RE2/J has its own, higher ones).
What RE2 refuses (backreferences, lookaround, atomic groups, possessive quantifiers) is refused.
"""

import string
import unicodedata
from dataclasses import dataclass
from typing import Final

from millstream.groups.errors import InvalidRegularExpression

TOPIC_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
PATTERN_LENGTH_MAX: Final = 1024
"""Four times the longest topic name: no pattern written by hand is longer."""
REPEAT_MAX: Final = 1000
"""RE2's own limit for {n,m}."""
DEPTH_MAX: Final = 100
"""Of nested groups: the parser is recursive."""

_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_PERL: Final = {"d": _DIGITS, "w": _WORD, "s": frozenset[str]()}
_POSIX: Final = {
    "alnum": _WORD - {"_"},
    "alpha": frozenset(string.ascii_letters),
    "ascii": TOPIC_CHARACTERS,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "digit": _DIGITS,
    "graph": TOPIC_CHARACTERS,
    "lower": frozenset(string.ascii_lowercase),
    "print": TOPIC_CHARACTERS,
    "punct": frozenset("._-"),
    "space": frozenset[str](),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ANCHORS: Final = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    of: frozenset[str]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A position: "start", "end", "boundary" (of a word) or "inside" (no boundary)."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """A concatenation; may be empty."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """At least `low` times, at most `high` (None: unbounded)."""

    part: "Node"
    low: int
    high: int | None


Node = Chars | Anchor | Sequence | Choice | Repeat


def parse(pattern: str) -> Node:
    """The syntax tree; raises InvalidRegularExpression."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRegularExpression(
            f"The pattern has {len(pattern)} characters; {PATTERN_LENGTH_MAX} is the most."
        )
    return _Parser(pattern).parse()


class _Parser:
    """Recursive descent; `at` is the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.folds_case = False

    def refuse(self, why: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(
            f"SubscribedTopicRegex `{self.pattern}` is not a valid regular expression: {why}."
        )

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        if self.at >= len(self.pattern):
            raise self.refuse("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def skip(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def parse(self) -> Node:
        node = self.choice()
        if self.at < len(self.pattern):
            raise self.refuse("unexpected )")
        return node

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.skip("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in {"", "|", ")"}:
            if self.skip(r"\Q"):
                parts += self.quoted()
                continue
            atom = self.atom()
            if atom is not None:
                parts.append(self.repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quoted(self) -> list[Node]:
        end = self.pattern.find(r"\E", self.at)
        text = self.pattern[self.at : len(self.pattern) if end < 0 else end]
        self.at = len(self.pattern) if end < 0 else end + 2
        parts: list[Node] = [self.literal(one) for one in text]
        if parts:
            parts[-1] = self.repeated(parts[-1])
        return parts

    def repeated(self, node: Node) -> Node:
        """`x*`, and `x*?`, which matches the same full texts; `x**` is refused, as in RE2."""
        bounds = self.bounds()
        if bounds is None:
            return node
        self.skip("?")
        if self.peek() in {"*", "+", "?"} or (self.peek() == "{" and self.is_counted()):
            raise self.refuse("a quantifier after a quantifier")
        return Repeat(node, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        match self.peek():
            case "*":
                self.at += 1
                return 0, None
            case "+":
                self.at += 1
                return 1, None
            case "?":
                self.at += 1
                return 0, 1
            case "{" if self.is_counted():
                return self.counted()
        return None

    def is_counted(self) -> bool:
        """`{` is a literal character unless a count follows."""
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(end, self.at + 1)].partition(",")
        digits = low.isascii() and low.isdigit()
        return end > 0 and digits and (not comma or not high or (high.isascii() and high.isdigit()))

    def counted(self) -> tuple[int, int | None]:
        end = self.pattern.index("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        self.at = end + 1
        least = int(low[:5])
        most = int(high[:5]) if high else None if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self.refuse("a bad count in {}")
        return least, most

    def atom(self) -> Node | None:
        """None: a flag group, which matches nothing by itself."""
        char = self.take()
        match char:
            case "(":
                return self.group()
            case "[":
                return Chars(self.klass())
            case ".":
                return Chars(TOPIC_CHARACTERS)
            case "^":
                return Anchor("start")
            case "$":
                return Anchor("end")
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                raise self.refuse(f"nothing before {char}")
        return self.literal(char)

    def literal(self, char: str) -> Chars:
        return Chars(self.folded(frozenset(char)))

    def folded(self, chars: frozenset[str]) -> frozenset[str]:
        if self.folds_case:
            chars = frozenset(other for one in chars for other in (one.lower(), one.upper()))
        return chars & TOPIC_CHARACTERS

    def group(self) -> Node | None:
        folded_before = self.folds_case
        if self.skip("?") and not self.group_head():
            return None
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.refuse("too many groups in groups")
        node = self.choice()
        if not self.skip(")"):
            raise self.refuse("missing closing )")
        self.depth -= 1
        self.folds_case = folded_before
        return node

    def group_head(self) -> bool:
        """What follows `(?`; False for flags without a group."""
        if self.skip("P<") or (self.peek() == "<" and self.pattern[self.at + 1 : self.at + 2] not in
                               {"=", "!"} and self.skip("<")):  # fmt: skip
            name, found, _ = self.pattern[self.at :].partition(">")
            if not found or not name.isascii() or not name.replace("_", "a").isalnum():
                raise self.refuse("a bad name of a group")
            self.at += len(name) + 1
            return True
        folds, is_on = self.folds_case, True
        while True:
            flag = self.take()
            if flag == "i":
                folds = is_on
            elif flag == "-" and is_on:
                is_on = False
            elif flag in {":", ")"}:
                self.folds_case = folds
                return flag == ":"
            elif flag not in {"m", "s", "U"}:
                # Lookaround, atomic groups, comments, conditions: RE2 has none of them.
                raise self.refuse(f"(?{flag} is not supported")

    def escape(self) -> Node:
        char = self.peek()
        if char in _ANCHORS:
            self.at += 1
            return Anchor(_ANCHORS[char])
        if char == "C":
            self.at += 1
            return Chars(TOPIC_CHARACTERS)
        return Chars(self.escaped())

    def escaped(self) -> frozenset[str]:
        """A class or a character, inside and outside of brackets."""
        char = self.take()
        if char.lower() in _PERL:
            found = _PERL[char.lower()]
            return found if char.islower() else TOPIC_CHARACTERS - found
        if char in {"p", "P"}:
            return self.property(is_negated=char == "P")
        if char in _CONTROL:
            return frozenset()
        if char == "x":
            return self.folded(frozenset(self.hexadecimal()))
        if char == "0":
            return frozenset()
        if char.isascii() and char.isalnum():
            raise self.refuse(f"\\{char} is not supported")
        return self.folded(frozenset(char))

    def hexadecimal(self) -> str:
        if self.skip("{"):
            digits, found, _ = self.pattern[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits, found = self.take() + self.take(), "}"
        try:
            return chr(int(digits, 16)) if found else ""
        except (ValueError, OverflowError):
            raise self.refuse("a bad number after \\x") from None

    def property(self, *, is_negated: bool) -> frozenset[str]:
        name = self.take()
        if name == "{":
            name, found, _ = self.pattern[self.at :].partition("}")
            if not found:
                raise self.refuse("missing } after \\p{")
            self.at += len(name) + 1
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        if not name.isascii() or not name.replace("_", "a").isalpha():
            raise self.refuse("a bad name of a class")
        found_chars = frozenset(one for one in TOPIC_CHARACTERS if _has_property(one, name))
        return TOPIC_CHARACTERS - found_chars if is_negated else self.folded(found_chars)

    def klass(self) -> frozenset[str]:
        """A bracketed class; the opening bracket is already consumed."""
        is_negated = self.skip("^")
        found: set[str] = set()
        is_first = True
        while is_first or not self.skip("]"):
            if self.skip("[:"):
                found |= self.posix()
            else:
                found |= self.class_part()
            is_first = False
        folded = self.folded(frozenset(found))
        return TOPIC_CHARACTERS - folded if is_negated else folded

    def posix(self) -> frozenset[str]:
        name, found, _ = self.pattern[self.at :].partition(":]")
        self.at += len(name) + 2
        if not found or name.removeprefix("^") not in _POSIX:
            raise self.refuse("an unknown class in [: :]")
        chars = _POSIX[name.removeprefix("^")]
        return TOPIC_CHARACTERS - chars if name.startswith("^") else chars

    def class_part(self) -> frozenset[str]:
        low = self.class_end()
        is_range = self.peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in {"]", ""}
        if not is_range:
            return low if isinstance(low, frozenset) else frozenset(low)
        self.at += 1
        high = self.class_end()
        if isinstance(low, frozenset) or isinstance(high, frozenset) or high < low:
            raise self.refuse("a bad range in []")
        return frozenset(one for one in TOPIC_CHARACTERS if low <= one <= high)

    def class_end(self) -> str | frozenset[str]:
        """A character, which may start or end a range, or a whole class, which may not."""
        char = self.take()
        if char != "\\":
            return char
        after = self.peek()
        if after == "x":
            self.at += 1
            return self.hexadecimal() or self.take()
        if after in _CONTROL:
            self.at += 1
            return _CONTROL[after]
        if after and not after.isalnum():
            return self.take()
        return self.escaped()


def _has_property(char: str, name: str) -> bool:
    """A general category (`L`, `Lu`), or one of the two scripts that topic names have."""
    if name in {"Any", "Latin", "Common"}:
        return name == "Any" or (name == "Latin") == char.isalpha()
    return len(name) <= 2 and unicodedata.category(char).startswith(name)
