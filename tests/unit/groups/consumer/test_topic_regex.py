"""Patterns of subscriptions: RE2's notation, and never more work than is proportional."""

import pytest

from millstream.groups.consumer import regex_job
from millstream.groups.consumer.regex_automaton import TopicRegex
from millstream.groups.consumer.regex_job import WORK_MAX, RegexJob
from millstream.groups.errors import InvalidRegularExpression


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("foo.*", "foobar", True),
        ("foo", "foobar", False),
        ("oba", "foobar", False),
        ("^abc$", "abc", True),
        ("[a-c]{2,3}", "abc", True),
        ("[a-c]{2,3}", "abca", False),
        ("(?i)FoO-[a-z]", "foo-X", True),
        ("(?i:F)oo", "foO", False),
        ("a(?i)b|c", "aB", True),
        ("(?-i)a", "A", False),
        (r"\Qa.b\E+", "a.bbb", True),
        (r"\Qa.b\E", "axb", False),
        (r"\pL+", "abZ", True),
        (r"\p{Lu}+", "Ab", False),
        (r"\P{N}", "1", False),
        (r"[\p{^L}]", "1", True),
        ("[[:digit:]]+", "12", True),
        ("[^[:alpha:]]", "a", False),
        ("x{", "x", False),
        (r"a\b-b", "a-b", True),
        ("[]a]+", "a", True),
        ("[a-]+", "a-", True),
        (r"\x41\x{42}", "AB", True),
        ("(?P<n>a)(?<m>b)", "ab", True),
        ("", "", True),
        ("a|", "", True),
    ],
)
def test_the_whole_name_is_matched(pattern: str, name: str, matches: bool) -> None:
    assert TopicRegex(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1", r"\k<a>", "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(?>a)", "(?#a)", "a**", "a++",
        "a{2}{3}", "(", "a)", "[", "[z-a]", "*a", "a{1001}", "(?P<n", "\\", r"\p{", "(?i",
        "[[:no:]]",
        "(a{1,100}){1,100}", "(" * 200, "a" * 2_000,
    ],
)  # fmt: skip
def test_what_re2_refuses_or_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        TopicRegex(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+-", "(a|a)*-", "(.*a){20}", "(a*)*b", "(a?){200}a{49}"])
def test_patterns_that_kill_backtracking_cost_no_more_than_others(pattern: str) -> None:
    regex = TopicRegex(pattern)
    regex.matches("a" * 249)
    assert regex.work < 249 * 1_500


def test_many_topics_are_looked_at_in_steps() -> None:
    names = [f"orders-{number}-{'x' * 40}" for number in range(20_000)]
    job = RegexJob(["orders-.*", "none"], names, version=7)
    steps = 1
    while (found := job.step()) is None:
        steps += 1
    assert steps > 3
    assert found == {"orders-.*": frozenset(names), "none": frozenset()}


def test_the_end_of_a_name_is_known_the_second_time_as_all_of_it_is() -> None:
    regex = TopicRegex(".*" * 400 + "x")
    assert [regex.matches(name) for name in ("aa", "ax")] == [False, True]
    work = regex.work
    assert work > 400 * 4
    assert [regex.matches(name) for name in ("aaa", "aa", "ax")] == [False, False, True]
    assert regex.work - work <= 2 * regex.state_count


def test_many_patterns_are_made_and_run_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs some milliseconds, and every member of a group may have one of its own."""
    made: list[TopicRegex] = []

    def make(pattern: str) -> TopicRegex:
        made.append(TopicRegex(pattern))
        return made[-1]

    monkeypatch.setattr(regex_job, "TopicRegex", make)
    patterns = [".*" * 400 + f"x{number}" for number in range(50)]
    job = RegexJob(patterns, ["a" * 100, "ax3"], version=1)
    assert made == []
    before, found = 0, None
    while found is None:
        found = job.step()
        work = sum(one.work + one.state_count for one in made)
        one_name = 101 * made[-1].state_count
        assert work - before <= WORK_MAX + one_name
        before = work
    assert found == {one: {"ax3"} if one.endswith("x3") else set() for one in patterns}
