"""Our runner of patterns against Python's, on patterns that both read alike."""

import re
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from millstream.groups.consumer.regex_automaton import TopicRegex
from millstream.groups.errors import InvalidRegularExpression

ATOMS = st.sampled_from(
    ["a", "b", "-", r"\.", "_", "1", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\W", "^", "$",
     r"\b", r"\B", "(?:)"]
)  # fmt: skip


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    )


patterns = st.recursive(ATOMS, _grown, max_leaves=8)
names = st.text(alphabet="abc-._1A", min_size=1, max_size=8)


@given(patterns, st.lists(names, min_size=1, max_size=6))
def test_it_matches_what_re_matches(pattern: str, told: list[str]) -> None:
    ours = TopicRegex(pattern)
    # RE2 reads `$` as the very end; names have no line ends, so Python's is the same.
    theirs = re.compile(pattern, re.ASCII)
    assert [ours.matches(one) for one in told] == [bool(theirs.fullmatch(one)) for one in told]


special = st.text(alphabet=r"ab(){}[]*+?|^$\.-:<>P!=#i0123Qx,pLd", max_size=14)


@given(st.text(max_size=30) | special)
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    """Whatever a client sends; nothing else may come out."""
    with suppress(InvalidRegularExpression):
        TopicRegex(text).matches("orders")
