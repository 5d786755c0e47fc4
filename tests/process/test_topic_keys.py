"""Every topic key has a test that changes it on a running broker and sees what follows."""

from collections import Counter
from pathlib import Path

from kits.broker.topic_keys_kit import keys_with_a_test
from millstream.model.config.topic_keys import TOPIC_KEYS


def test_every_topic_key_is_seen_to_work() -> None:
    tested = Counter(keys_with_a_test(Path(__file__).parent, "test_topic_keys_*.py"))
    assert set(tested) == set(TOPIC_KEYS)
    assert max(tested.values()) == 1
