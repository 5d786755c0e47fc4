"""Groups lie where Kafka puts them: the hashes here are those of Java's strings."""

import pytest

from millstream.groups.records.partition_of import java_hash, partition_of

HASHES = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "console-consumer-1": 31 * java_hash("console-consumer-") + ord("1"),
    "ö": 246,
    "日本": 31 * 0x65E5 + 0x672C,
    "😀": 31 * 0xD83D + 0xDE00,
    "polygenelubricants": -(2**31),
}


@pytest.mark.parametrize(("text", "hashed"), HASHES.items())
def test_the_hash_is_javas(text: str, hashed: int) -> None:
    wrapped = (hashed + 2**31) % 2**32 - 2**31
    assert java_hash(text) == wrapped


def test_the_hash_is_of_utf_16_units() -> None:
    """Two units for what lies beyond the first 65,536 characters, high one first."""
    assert java_hash("😀") != ord("😀")


@pytest.mark.parametrize(
    ("group_id", "count", "partition"),
    [("hello", 50, 22), ("polygenelubricants", 50, 0), ("", 50, 0), ("Aa", 7, 5)],
)
def test_the_partition_is_kafkas(group_id: str, count: int, partition: int) -> None:
    assert partition_of(group_id, count) == partition


def test_a_negative_hash_gives_a_partition() -> None:
    """The name is long enough to overflow."""
    assert java_hash("orders-processing") == -1823086853
    assert partition_of("orders-processing", 50) == 3
