"""`millstream produce` and `consume` in an interpreter that has neither pyarrow nor numpy."""

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kits.client.our_client import created
from kits.client.reading_stories import servers
from millstream.client.blocking import BlockingClient
from millstream.client.offsets import LATEST
from millstream.client.produce.bytes_batch import bytes_batch
from millstream.client.settings import ClientSettings
from millstream.model.ids import Offset, TopicPartition
from millstream.testing.broker_thread import BrokerThread

WITHOUT = """
import sys
sys.modules["pyarrow"] = sys.modules["numpy"] = None
from millstream.cli.main import run
sys.argv = ["millstream", *sys.argv[1:]]
run()
"""


@pytest.fixture(scope="module")
def client() -> Iterator[BlockingClient]:
    with BrokerThread() as broker:
        configs = {"bootstrap.servers": broker.bootstrap_servers}
        with BlockingClient(ClientSettings.from_configs(configs)) as made:
            yield made


def run(client: BlockingClient, *arguments: str, data: bytes = b"") -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments, "-b", servers(client)],
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(client: BlockingClient, codec: str) -> None:
    topic = f"lines-{codec}"
    created(client, topic, 3)
    lines = [b"key-%d\tvalue \xff %d" % (number % 7, number) for number in range(5000)]
    data = b"\n".join(lines) + b"\n"
    run(client, "produce", topic, "--key-separator", r"\t", "--compression", codec, data=data)
    read = ("--from-beginning", "--until-end", "--format")
    printed = run(client, "consume", topic, *read, "key-value")
    assert sorted(printed.splitlines()) == sorted(lines)
    for kind in ("value", "full", "json"):
        assert len(run(client, "consume", topic, *read, kind).splitlines()) == len(lines)
    some = run(client, "consume", topic, "--from-beginning", "-n", "7")
    assert len(some.splitlines()) == 7


def test_one_partition_and_no_keys(client: BlockingClient) -> None:
    created(client, "placed", 3)
    run(client, "produce", "placed", "--partition", "2", data=b"one\n\ntwo")
    printed = run(client, "consume", "placed", "--from-beginning", "--until-end", "-p", "2")
    assert printed == b"one\n\ntwo\n"


def test_plain_batches_are_written_as_arrow_batches_are(client: BlockingClient) -> None:
    """Keys go to the same partitions, and small writes become one batch, in their order."""
    keys = [b"key-%d" % number for number in range(100)]
    values = [b"value-%d" % number for number in range(100)]
    stored = {}
    for topic in ("as-plain", "as-arrow"):
        created(client, topic, 3)
        with client.column_writer(topic=topic) as writer:
            for at in range(0, 100, 10):
                some = slice(at, at + 10)
                columns = {"key": pa.array(keys[some]), "value": pa.array(values[some])}
                plain = bytes_batch(values[some], keys=keys[some])
                writer.write(plain if topic == "as-plain" else pa.record_batch(columns))
        stored[topic] = [_read(client, TopicPartition(topic, index)) for index in range(3)]
    assert stored["as-plain"] == stored["as-arrow"]
    assert sum(map(len, stored["as-plain"])) == 100


def _read(client: BlockingClient, at: TopicPartition) -> list[tuple[bytes, bytes]]:
    end = client.list_offsets({at: LATEST})[at].offset
    with client.read_columns(at, Offset(0), end, columns=("key", "value")) as batches:
        return [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]
