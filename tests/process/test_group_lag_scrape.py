"""The lag of a group of real clients, as it is scraped from two brokers."""

import json
import re
import urllib.request
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from kits.process.up_kit import cluster_up
from kits.process.waiting_for import until

PARTITIONS = 4
GROUP = "readers"
SAMPLE = re.compile(r"^millstream_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def scrape(directory: Path) -> dict[str, dict[int, dict[int, float]]]:
    """Of our topic: metric, broker, partition, value."""
    lines = (directory / "stderr").read_text().splitlines()
    served = [json.loads(one) for one in lines if "serving metrics" in one]
    assert len(served) == 2
    found: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in served:
        with urllib.request.urlopen(f"http://127.0.0.1:{one['port']}/metrics") as answer:
            text = answer.read().decode()
        for name, labels, value in SAMPLE.findall(text):
            told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if told.get("topic") == "events" and "partition" in told:
                assert told.get("group", GROUP) == GROUP
                found[name][one["node"]][int(told["partition"])] = float(value)
    return found


def test_lag_of_a_group_is_known_from_the_scrapes_of_all_brokers(tmp_path: Path) -> None:
    """One replica each: the coordinator has half of the partitions, and tells the lag of these."""
    with cluster_up(tmp_path / "data", "--brokers", "2", "--port", "0") as (_, cluster):
        topic = NewTopic("events", num_partitions=PARTITIONS, replication_factor=1)
        cluster.admin.create_topics([topic])["events"].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(40):
            producer.produce("events", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["events"])
        assert consumer.poll(30) is not None
        offsets = [TopicPartition("events", index, 2 * index + 1) for index in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        leaders = {index: one.leader for index, one in cluster.partitions("events").items()}
        found = scrape(tmp_path)
        ((coordinator, committed),) = found["group_committed_offset"].items()
        assert committed == {0: 1, 1: 3, 2: 5, 3: 7}
        ends = found["partition_high_watermark"]
        assert {node: set(those) for node, those in ends.items()} == {
            node: {index for index, leader in leaders.items() if leader == node} for node in (1, 2)
        }
        everywhere = {index: end for those in ends.values() for index, end in those.items()}
        lag = {index: everywhere[index] - offset for index, offset in committed.items()}
        assert lag == {0: 9, 1: 7, 2: 5, 3: 3}
        here = {index: lag[index] for index in ends[coordinator]}
        assert found["group_lag"] == {coordinator: here}
        consumer.commit(
            offsets=[TopicPartition("events", index, 10) for index in range(PARTITIONS)],
            asynchronous=False,
        )
        consumer.close()
        until(
            lambda: scrape(tmp_path)["group_lag"] == {coordinator: dict.fromkeys(here, 0)},
            "no group is behind",
        )
