"""Who leaves when there is no room."""

from millstream.runtime.eviction import oldest_of_largest


def test_the_first_of_the_group_with_the_most_leaves() -> None:
    one, two, three = dict.fromkeys("ab"), dict.fromkeys("cde"), dict.fromkeys("fgh")
    assert oldest_of_largest([one, two, three]) == "c", "of equal groups the first"
    assert oldest_of_largest([{}, one]) == "a"
