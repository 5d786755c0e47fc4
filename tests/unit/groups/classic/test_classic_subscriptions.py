"""The topics in what consumers of a classic group say."""

from struct import pack
from typing import Any

import pytest

from kits.groups.shard_requests import subscription
from millstream.groups.classic import subscriptions
from millstream.groups.classic.subscriptions import NAMES_MAX, all_topics, topics_of
from millstream.wire.primitives import read_string


def with_user_data(topics: list[str], user_data: bytes) -> bytes:
    return subscription(topics)[:-4] + pack(">i", len(user_data)) + user_data


def test_topics_of_all_members_are_found() -> None:
    assert all_topics([subscription(["t", "u"]), subscription(["u", "v"])]) == frozenset("tuv")
    assert all_topics([subscription([])]) == frozenset()
    assert all_topics([]) == frozenset()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0", b"\x80\0" + bytes(8), subscription(["t"])[:-1], subscription(["t"]) + b"more"],
)
def test_bytes_that_end_too_early_are_no_subscription_wherever_they_stand(raw: bytes) -> None:
    is_known = raw.endswith(b"more")
    assert (topics_of(raw) is not None) is is_known
    assert (all_topics([subscription(["t"]), raw]) is not None) is is_known


def test_a_length_of_user_data_that_is_not_there_is_no_subscription() -> None:
    cut = with_user_data(["t"], b"12345")[:-1]
    assert topics_of(cut) is None
    assert all_topics([subscription(["t"]), cut]) is None


def test_topics_that_members_have_in_common_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred members with a thousand topics kept all others waiting for a long time."""
    reads = []

    def counted(*of: Any) -> Any:
        reads.append(of[1])
        return read_string(*of)

    monkeypatch.setattr(subscriptions, "read_string", counted)
    names = [f"topic-{number}" for number in range(1_000)]
    metadatas = [with_user_data(names, str(number).encode()) for number in range(100)]
    assert all_topics(metadatas) == frozenset(names)
    assert len(reads) == len(names)


def test_more_names_than_can_be_read_are_not_known() -> None:
    too_many = pack(">hi", 0, NAMES_MAX + 1) + bytes(2 * NAMES_MAX + 2) + pack(">i", -1)
    assert topics_of(too_many) is None
    enough = pack(">hi", 0, NAMES_MAX) + bytes(2 * NAMES_MAX) + pack(">i", -1)
    assert topics_of(enough) == frozenset([""])
    assert all_topics([enough, subscription(["t"])]) is None
