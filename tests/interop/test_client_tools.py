"""Apache Kafka's command-line tools on the broker: what an operator types, and what is printed."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ByName
from kits.interop.client_kit import START_MS, ConnectedClient, Record, new_topic_name, some_records
from kits.interop.client_targets import Target
from kits.interop.kafka_tools import run_script

pytestmark = pytest.mark.interop

# What the Java client's producer and consumer cannot do without, at versions they speak.
NEEDED_APIS = {
    "Produce": 12,
    "Fetch": 17,
    "ListOffsets": 10,
    "Metadata": 13,
    "ApiVersions": 4,
    "CreateTopics": 7,
    "DeleteTopics": 6,
    "DeleteRecords": 2,
    "InitProducerId": 5,
    "OffsetForLeaderEpoch": 4,
    "DescribeConfigs": 4,
    "AlterConfigs": 2,
    "IncrementalAlterConfigs": 1,
    "CreatePartitions": 3,
    "DescribeLogDirs": 4,
    "AlterReplicaLogDirs": 2,
    "DescribeCluster": 2,
    "DescribeProducers": 0,
    "DescribeTopicPartitions": 0,
    "FindCoordinator": 6,
}


@pytest.fixture
def java(client_of: ByName) -> ConnectedClient:
    return client_of("java")


def test_topics_tool_creates_alters_lists_and_deletes(java: ConnectedClient) -> None:
    topic = new_topic_name("by-tool")
    created = run_script(
        java,
        "kafka-topics",
        *("--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1"),
        *("--config", "retention.ms=5000000"),
    )
    assert f"Created topic {topic}." in created.text
    assert topic in run_script(java, "kafka-topics", "--list").text.splitlines()
    run_script(java, "kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    described = run_script(java, "kafka-topics", "--describe", "--topic", topic).text
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s", described)
    assert "retention.ms=5000000" in described
    assert re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described) == [
        "0",
        "1",
        "2",
    ]
    run_script(java, "kafka-topics", "--delete", "--topic", topic)
    assert topic not in run_script(java, "kafka-topics", "--list").text.splitlines()


def test_topics_tool_finds_nothing_wrong(
    java: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("healthy")
    for wrong in ("--under-replicated-partitions", "--unavailable-partitions"):
        told = run_script(java, "kafka-topics", "--describe", "--topic", topic, wrong)
        assert told.text.strip() == ""


def test_topics_tool_tells_what_is_wrong(
    java: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("existing")
    twice = run_script(java, "kafka-topics", "--create", "--topic", topic, must_work=False)
    assert twice.exit_code == 1
    assert "already exists" in twice.text
    gone = run_script(
        java, "kafka-topics", "--describe", "--topic", "never-made-by-tool", must_work=False
    )
    assert gone.exit_code == 1
    many = run_script(
        java,
        "kafka-topics",
        *("--create", "--topic", new_topic_name("replicated"), "--replication-factor", "2"),
        must_work=False,
    )
    assert many.exit_code == 1
    assert "replication factor" in many.text.lower()


def test_configs_tool_changes_a_topic(java: ConnectedClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic("configured")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    done = run_script(
        java, "kafka-configs", *entity, "--alter", "--add-config", "retention.ms=7777,flush.ms=9"
    )
    assert "Completed updating config" in done.text
    told = run_script(java, "kafka-configs", *entity, "--describe").text
    assert "retention.ms=7777" in told
    assert "flush.ms=9" in told
    run_script(java, "kafka-configs", *entity, "--alter", "--delete-config", "retention.ms")
    told = run_script(java, "kafka-configs", *entity, "--describe").text
    assert "retention.ms=7777" not in told
    assert "flush.ms=9" in told
    whole = run_script(java, "kafka-configs", *entity, "--describe", "--all").text
    assert "retention.ms=604800000" in whole
    assert "DEFAULT_CONFIG:log.flush.interval.messages=9223372036854775807" in whole


def test_configs_tool_describes_the_broker(java: ConnectedClient, target: Target) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    told = run_script(java, "kafka-configs", *entity).text
    assert f"log.dirs={target.data_directory}" in told
    assert "message.max.bytes=1048588" in told


def test_console_producer_and_consumer(
    java: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("console")
    lines = b"".join(b"k%d:line %d\n" % (n, n) for n in range(10))
    run_script(
        java,
        "kafka-console-producer",
        *("--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        data=lines,
    )
    assert {batch.codec for batch in target.stored(topic)} == {"zstd"}
    read = run_script(
        java,
        "kafka-console-consumer",
        *("--topic", topic, "--partition", "0", "--offset", "4", "--max-messages", "3"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--timeout-ms", "20000"),
    )
    assert read.text.splitlines() == [f"Offset:{n}\tk{n}\tline {n}" for n in (4, 5, 6)]
    whole = run_script(
        java,
        "kafka-console-consumer",
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", "10", "--timeout-ms", "20000"),
    )
    assert whole.text.splitlines() == [f"line {n}" for n in range(10)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_consumer_goes_on_where_its_group_was(
    java: ConnectedClient, protocol: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("console-group", partitions=2)
    java.produce(topic, some_records(10), partition=1)
    words = [
        *("--topic", topic, "--group", f"{topic}-readers", "--timeout-ms", "20000"),
        *("--command-property", f"group.protocol={protocol}"),
        *("--formatter-property", "print.offset=true"),
    ]
    first = run_script(
        java, "kafka-console-consumer", *words, "--from-beginning", "--max-messages", "4"
    )
    assert re.findall(r"Offset:(\d+)", first.text) == ["0", "1", "2", "3"]
    rest = run_script(java, "kafka-console-consumer", *words, "--max-messages", "6")
    assert re.findall(r"Offset:(\d+)", rest.text) == ["4", "5", "6", "7", "8", "9"]


def test_get_offsets_tool(java: ConnectedClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic("offsets", partitions=2)
    java.produce(topic, some_records(10))
    for time, wanted in (
        ("earliest", (0, 0)),
        ("latest", (10, 0)),
        ("max-timestamp", (9, -1)),
        (str(START_MS + 3500), (4, -1)),
    ):
        told = run_script(java, "kafka-get-offsets", "--topic", topic, "--time", time).text
        expected = [f"{topic}:{n}:{at if at >= 0 else ''}" for n, at in enumerate(wanted)]
        assert told.splitlines() == [line for line in expected if not line.endswith(":")]


def test_delete_records_tool(
    java: ConnectedClient, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic("shortened")
    java.produce(topic, some_records(10))
    plan = tmp_path / "plan.json"
    asked = [{"topic": topic, "partition": 0, "offset": 4}]
    plan.write_text(json.dumps({"version": 1, "partitions": asked}))
    told = run_script(java, "kafka-delete-records", "--offset-json-file", str(plan)).text
    assert f"partition: {topic}-0\tlow_watermark: 4" in told
    assert java.offsets(topic)["earliest"] == 4


def test_log_dirs_tool(
    java: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("sized", partitions=2)
    java.produce(topic, some_records(10), partition=1)
    told = run_script(java, "kafka-log-dirs", "--describe", "--topic-list", topic).text
    (broker,) = json.loads(told.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert (broker["broker"], directory["error"]) == (1, None)
    assert directory["logDir"] == str(target.data_directory)
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    stored = (target.data_directory / f"{topic}-1" / f"{0:020}.log").stat().st_size
    assert sizes == {f"{topic}-0": 0, f"{topic}-1": stored}


def test_api_versions_tool(java: ConnectedClient) -> None:
    told = run_script(java, "kafka-broker-api-versions").text
    found = dict(re.findall(r"(\w+)\(\d+\): (?:\d+ to )?(\d+) \[", told))
    missing = {
        name: found.get(name)
        for name, newest in NEEDED_APIS.items()
        if int(found.get(name, -1)) < newest
    }
    assert missing == {}


def test_cluster_tool(java: ConnectedClient) -> None:
    told = run_script(java, "kafka-cluster", "cluster-id").text
    assert re.search(r"Cluster ID: \S{22}\b", told)
    told = run_script(java, "kafka-cluster", "list-endpoints").text
    assert java.servers.rpartition(":")[2] in told


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_producer_perf_tool(
    java: ConnectedClient, codec: str, target: Target, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(f"perf-{codec}")
    told = run_script(
        java,
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "20000", "--record-size", "200"),
        *("--throughput", "-1", "--command-property", f"compression.type={codec}"),
    ).text
    assert re.search(r"20000 records sent", told)
    stored = target.stored(topic)
    assert {batch.codec for batch in stored} == {codec}
    assert sum(batch.record_count for batch in stored) == 20_000


def test_java_producer_hears_at_once_that_there_are_no_transactions(
    java: ConnectedClient, target: Target, new_topic: Callable[..., str]
) -> None:
    """Without an answer that is final it asks for `max.block.ms`, which is a minute."""
    if target.name != "millstream":
        pytest.skip("Apache Kafka has transactions")
    told = run_script(
        java,
        "kafka-producer-perf-test",
        *("--topic", new_topic("perf"), "--num-records", "1", "--record-size", "1"),
        *("--throughput", "-1", "--transactional-id", "mine", "--transaction-duration-ms", "9"),
        must_work=False,
    )
    assert told.exit_code != 0
    assert "transactions are not supported yet" in told.text + told.errors


def test_transactions_tool_describes_producers(
    java: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("producers")
    java.produce(topic, [Record(value=b"idempotent")] * 3)
    told = run_script(
        java,
        "kafka-transactions",
        *("describe-producers", "--topic", topic, "--partition", "0"),
    ).text
    header, row = [line.split() for line in told.splitlines() if line.strip()]
    producer = dict(zip(header, row, strict=True))
    assert producer["ProducerEpoch"] == "0"
    assert producer["LastSequence"] == "2"


def test_features_tool(java: ConnectedClient) -> None:
    """It names what it finds; the level that is there can be asked for, and no other."""
    told = run_script(java, "kafka-features", "describe").text
    line = re.compile(
        r"Feature: (\S+)\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: (\S+)\s+"
        r"FinalizedVersionLevel: (\S+)\s+Epoch: \d+"
    )
    found = {one[1]: one[3] for each in told.splitlines() if (one := line.fullmatch(each.strip()))}
    assert len(found) == len(told.splitlines())
    levels = {"metadata.version": "4.3-IV0", "group.version": "1"}
    assert {**levels, "eligible.leader.replicas.version": "1"}.items() <= found.items()
    same = run_script(java, "kafka-features", "upgrade", "--feature", "group.version=1").text
    assert "group.version was upgraded to 1." in same
    for change in ("group.version=7", "no.such.version=1"):
        refused = run_script(
            java, "kafka-features", "upgrade", "--feature", change, must_work=False
        )
        assert refused.exit_code == 1
        assert "Could not upgrade" in refused.text + refused.errors
