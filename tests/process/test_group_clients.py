"""Unmodified clients in consumer groups: they subscribe, commit, and go on where they were.

The broker is restarted between the two halves of every story, so the offsets come from its log.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from kits.process import group_client_program
from kits.process.group_client_program import CLIENTS, GROUP, TOPIC, WAIT_S
from millstream.testing.broker_thread import BrokerThread


def read(client: str, servers: str, count: int) -> list[str]:
    """As the group's only member."""
    done = subprocess.run(
        [sys.executable, group_client_program.__file__, client, servers, str(count)],
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def fill(servers: str, first: int, stop: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(first, stop):
        producer.produce(TOPIC, value=str(number), partition=0)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_client_goes_on_where_its_group_was(tmp_path: Path, client: str) -> None:
    expected = [str(number) for number in range(20)]
    with BrokerThread(directory=tmp_path) as broker:
        fill(broker.bootstrap_servers, 0, 20)
        assert read(client, broker.bootstrap_servers, 10) == expected[:10]
    with BrokerThread(directory=tmp_path) as broker:
        assert read(client, broker.bootstrap_servers, 10) == expected[10:]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)]).values()
        offsets = [
            (one.topic, one.partition, one.offset) for one in asked.result().topic_partitions
        ]
        assert offsets == [(TOPIC, 0, 20)]
        (deleted,) = admin.delete_consumer_groups([GROUP], request_timeout=WAIT_S).values()
        assert deleted.result() is None
