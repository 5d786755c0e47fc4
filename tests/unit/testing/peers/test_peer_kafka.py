"""The parts of the Apache Kafka harness that need no Java."""

from uuid import UUID

from millstream.testing.peers.kafka import cluster_id


def test_a_cluster_id_never_looks_like_an_option() -> None:
    """Every first byte that there is: base64 of 0xf8 to 0xfb begins with '-'."""
    ids = [cluster_id(UUID(bytes=bytes([first]) + bytes(15))) for first in range(256)]
    assert [one for one in ids if one.startswith("-")] == []
    assert {len(one) for one in ids} == {22}
