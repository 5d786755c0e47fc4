"""The partition of the offsets topic for a group: Kafka's rule, so that both agree."""

from functools import lru_cache


def java_hash(text: str) -> int:
    """Java's String.hashCode: over the UTF-16 units, in 32-bit arithmetic with a sign."""
    hashed = 0
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        hashed = (31 * hashed + unit) & 0xFFFF_FFFF
    return hashed - (hashed >> 31 << 32)


@lru_cache(maxsize=4096)
def partition_of(name: str, partition_count: int) -> int:
    """The partition for a group id (or a transactional id, which Kafka maps the same way).

    Cached, because the same groups send requests all the time.
    """
    hashed = java_hash(name)
    # Java cannot negate the smallest number, and Kafka uses 0 instead.
    return (0 if hashed == -(2**31) else abs(hashed)) % partition_count
