"""Topic keys that decide who leads, changed while the broker runs."""

from collections.abc import Iterator

import pytest

from topic_keys_kit import Bench, effect_of, running_bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running_bench() as running:
        yield running


@effect_of("unclean.leader.election.enable")
def test_only_replica_goes_on_whatever_the_topic_allows(bench: Bench) -> None:
    topic = bench.topic()
    for value in ("true", "false", None):
        bench.alter_topic(topic, unclean_leader_election_enable=value)
        bench.put(topic)
    assert len(bench.records(topic)) == 3
