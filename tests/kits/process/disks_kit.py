"""A broker process with several log directories, and requests that show which are online."""

import re
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.wire_client import WireClient, build_batch
from millstream.testing.record_batches import read_records
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC = "orders"
PARTITIONS = 4
OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR


class Disks:
    """Log directories that can be taken away between two starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._running: BrokerProcess | None = None

    def path(self, name: str) -> Path:
        return self.root / name / "logs"

    def unmount(self, name: str, *, how: str = "no path") -> None:
        (self.root / name).rename(self.root / f"{name}.away")
        if how == "empty mount point":
            self.path(name).mkdir(parents=True)

    def mount(self, name: str) -> None:
        if (self.root / name).exists():
            assert not list((self.root / name).rglob("*-[0-9]*")), "something was written there"
            shutil.rmtree(self.root / name)
        (self.root / f"{name}.away").rename(self.root / name)

    @contextmanager
    def broker(self, *names: str, kill: bool = False) -> Iterator[BrokerProcess]:
        settings = {
            "log.dirs": ",".join(str(self.path(name)) for name in names),
            "metrics.port": "0",
            "auto.create.topics.enable": "false",
        }
        (self.root / "stderr").unlink(missing_ok=True)
        with broker_process(self.root, settings) as broker:
            self._running = broker
            yield broker
            if kill:
                broker.kill()

    def lines(self, text: str) -> list[str]:
        return [one for one in (self.root / "stderr").read_text().splitlines() if text in one]

    def gauge(self, name: str) -> int:
        assert self._running is not None
        url = f"http://127.0.0.1:{self._running.metrics_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
        found = re.search(rf"^millstream_{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return int(float(found[1]))

    def partitions_in(self, name: str) -> list[int]:
        return sorted(
            int(one.name.rpartition("-")[2]) for one in self.path(name).glob(f"{TOPIC}-[0-9]")
        )


def disks_with_records(root: Path, *names: str) -> Disks:
    """Disks with two partitions each, and a record in every partition."""
    made = Disks(root)
    with made.broker(*names) as broker, broker.client() as client:
        client.create_topic(TOPIC, 2 * len(names))
        for partition in range(2 * len(names)):
            put(client, partition, b"first")
    assert [len(made.partitions_in(one)) for one in names] == [2] * len(names)
    return made


def put(client: WireClient, partition: int, value: bytes, topic: str = TOPIC) -> ErrorCode:
    answer = client.produce(topic, build_batch([(None, value)]), partition=partition)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def values(client: WireClient, partition: int) -> list[bytes | None] | ErrorCode:
    found = client.fetch(TOPIC, 0, partition=partition).responses[0].partitions[0]
    if found.error_code:
        return ErrorCode(found.error_code)
    return [one.value for one in read_records(bytes(found.records or b""))]


def log_dirs(client: WireClient) -> dict[str, ErrorCode]:
    answer = client.send(DescribeLogDirsRequest(topics=None), 4)
    return {one.log_dir: ErrorCode(one.error_code) for one in answer.results}


def leaders(client: WireClient) -> dict[int, ErrorCode]:
    topics = [MetadataRequestTopic(name=TOPIC)]
    (topic,) = client.send(MetadataRequest(topics=topics), 9).topics
    return {one.partition_index: ErrorCode(one.error_code) for one in topic.partitions}


def delete_topic(client: WireClient, name: str = TOPIC) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    assert client.send(request, 6).responses[0].error_code == 0
