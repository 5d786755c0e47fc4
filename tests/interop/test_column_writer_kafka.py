"""The stories of our writer of columns with Apache Kafka; tests/process has ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.client.our_writer import STORIES, Story, write_through_kills
from millstream.testing.peers.kafka import ApacheKafka

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jars=jars) as running:
        yield running


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(kafka: ApacheKafka, story: Story) -> None:
    story(kafka.bootstrap_servers, story.__name__.replace("_", "-"))


def test_nothing_is_lost_or_doubled_when_kafka_is_killed(jars: Path, tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka:

        def kill_and_restart() -> None:
            kafka.kill()
            kafka.start()

        write_through_kills(kafka.bootstrap_servers, "killed", kill_and_restart)
