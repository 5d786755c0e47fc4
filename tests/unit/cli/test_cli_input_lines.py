"""Lines of an input: whole, numbered, bounded, and in time that grows with the bytes alone."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.input_lines import LineError, Lines, separator_of, split_keys, whole_lines


def reader(chunks: list[bytes]) -> Iterator[bytes]:
    yield from chunks
    yield b""


def lines_of(chunks: list[bytes], bytes_max: int) -> tuple[list[bytes], str]:
    """All that came, and the error that ended it."""
    feed = reader(chunks)
    found: list[bytes] = []
    try:
        for some in whole_lines(lambda: next(feed), bytes_max=bytes_max):
            assert some.texts
            assert some.first == len(found) + 1
            found += some.texts
    except LineError as error:
        return found, str(error)
    return found, ""


@given(st.lists(st.text("ab\n", min_size=1, max_size=9)), st.integers(1, 6))
def test_lines_are_those_of_the_whole(texts: list[str], bytes_max: int) -> None:
    chunks = [text.encode() for text in texts]
    whole = b"".join(chunks).split(b"\n")
    if not whole[-1]:
        whole.pop()
    bad = next((at for at, one in enumerate(whole) if len(one) > bytes_max), None)
    found, error = lines_of(chunks, bytes_max)
    assert found == whole[:bad]
    assert error.startswith("" if bad is None else f"line {bad + 1} is too long")
    assert bool(error) == (bad is not None)


def test_no_more_is_read_of_a_line_than_it_may_have() -> None:
    count = 0

    def read() -> bytes:
        nonlocal count
        count += 1
        return b"x" * 100

    with pytest.raises(LineError, match="line 1 is too long"):
        list(whole_lines(read, bytes_max=1000))
    assert count == 11


@pytest.mark.parametrize(
    ("given_as", "meant"),
    [
        (b":", b":"),
        (rb"\t", b"\t"),
        (rb"\x00\xfF", b"\x00\xff"),
        (rb"\\t", rb"\t"),
        (rb"\r", b"\r"),
    ],
)
def test_separators(given_as: bytes, meant: bytes) -> None:
    assert separator_of(given_as) == meant


@pytest.mark.parametrize("given_as", [b"", b"\\", rb"\q", rb"\x1", rb"\n", b"a\nb"])
def test_separators_that_cannot_be(given_as: bytes) -> None:
    with pytest.raises(ValueError, match=r"escape|empty|line break"):
        separator_of(given_as)


def test_keys_up_to_the_first_line_without() -> None:
    found = split_keys(Lines(8, [b"a=1=2", b"=", b"none", b"b=3"]), b"=")
    assert (found.keys, found.values) == ([b"a", b""], [b"1=2", b""])
    assert str(found.error) == "line 10 has no key separator '='"
    assert "'\\xff'" in str(split_keys(Lines(1, [b"x"]), b"\xff").error)
