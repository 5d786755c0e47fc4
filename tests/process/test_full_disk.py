"""A disk that is really full: one line in the broker's log, a metric, and the same when it is over.

The log directory is a small file system that only the broker sees: a tmpfs in a mount namespace of
its own, which ends with the process. The test reaches it through /proc.
"""

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch
from millstream.testing.record_batches import read_records
from millstream.wire.errors import ErrorCode

FULL = "log directory full; refusing writes"
ROOM_AGAIN = "log directory has space again; accepting writes"
DISK_BYTES = 8 << 20
LEFT_BYTES = 1 << 20
VALUE = b"v" * 100_000
TOPIC = "orders"


def mounting(path: Path) -> list[str]:
    """Runs the command after it where a small disk is at the path; skips where that is refused."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs '{path}'"
    tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, check=False)
    if tried.returncode:
        reason = f"no file system of its own: {tried.stderr.decode().strip()}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return [*unshare, "sh", "-c", f'{mount} && exec "$@"', "sh"]


class Machine(NamedTuple):
    """A broker with a large disk, which has the metadata, and a small one."""

    broker: BrokerProcess
    large: Path
    small: Path

    @property
    def ballast(self) -> Path:
        """On the small disk, as only the broker sees it."""
        return Path(f"/proc/{self.broker.pid}/root{self.small}/ballast")

    def make_ballast(self) -> None:
        """Leave little room."""
        status = os.statvfs(self.ballast.parent)
        self.ballast.write_bytes(bytes(status.f_bavail * status.f_frsize - LEFT_BYTES))

    def partition_on_the_small_disk(self) -> int:
        inside = Path(f"/proc/{self.broker.pid}/root{self.small}")
        (found,) = inside.glob(f"{TOPIC}-*")
        return int(found.name.rpartition("-")[2])

    def lines(self, message: str) -> list[dict[str, object]]:
        lines = (self.broker.directory / "stderr").read_text().splitlines()
        found = [json.loads(one) for one in lines if one.startswith("{")]
        return [one for one in found if one["message"] == message]

    def has_lines(self, message: str, count: int) -> bool:
        return len(self.lines(message)) >= count

    def metric(self, name: str) -> dict[str, int]:
        """By log directory."""
        url = f"http://127.0.0.1:{self.broker.metrics_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
        found = re.findall(rf'^millstream_{name}{{directory="(.+)"}} (\S+)$', text, re.MULTILINE)
        return {path: int(float(value)) for path, value in found}


@contextmanager
def machine(root: Path) -> Iterator[Machine]:
    large, small = root / "large", root / "small"
    for one in (large, small):
        one.mkdir()
    settings = {
        "log.dirs": f"{large},{small}",
        "metrics.port": "0",
        "auto.create.topics.enable": "false",
    }
    with broker_process(root, settings, inside=mounting(small)) as broker:
        yield Machine(broker, large, small)
    assert list(small.iterdir()) == [], "the disk went with the broker"


def put(client: WireClient, partition: int, topic: str = TOPIC) -> ErrorCode:
    answer = client.produce(topic, build_batch([(None, VALUE)]), partition=partition)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def fill(client: WireClient, partition: int) -> int:
    """Append until the disk refuses; how many records it took."""
    for count in range(DISK_BYTES // len(VALUE)):
        code = put(client, partition)
        if code:
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            assert code.is_retriable, "the same request works once there is room"
            return count
    raise AssertionError("the disk does not become full")


def test_a_full_disk_is_one_line_and_a_metric_until_there_is_room_again(tmp_path: Path) -> None:
    with machine(tmp_path) as here, here.broker.client() as client:
        client.create_topic(TOPIC, 2)
        small, large = str(here.small), str(here.large)
        full = here.partition_on_the_small_disk()
        stored = 0
        for episode in (1, 2):
            here.make_ballast()
            stored += fill(client, full)
            refused = [put(client, full) for _ in range(30)]
            assert set(refused) == {ErrorCode.KAFKA_STORAGE_ERROR}
            until(partial(here.has_lines, FULL, episode), "the full disk is logged")
            line = here.lines(FULL)[-1]
            assert (line["level"], line["directory"]) == ("ERROR", small)
            assert 0 <= int(str(line["free_bytes"])) < len(VALUE) + 4096
            assert here.metric("log_directory_full") == {small: 1, large: 0}
            assert here.metric("log_directory_refused_writes_total")[large] == 0
            assert here.metric("log_directory_refused_writes_total")[small] >= 31 * episode
            assert put(client, 1 - full) == ErrorCode.NONE, "the other disk has room"
            assert len(here.lines(ROOM_AGAIN)) == episode - 1
            here.ballast.unlink()
            until(partial(here.has_lines, ROOM_AGAIN, episode), "its end is logged")
            assert here.metric("log_directory_full") == {small: 0, large: 0}
            assert put(client, full) == ErrorCode.NONE
            stored += 1
        assert len(here.lines(FULL)) == len(here.lines(ROOM_AGAIN)) == 2
        end = here.lines(ROOM_AGAIN)[0]
        assert (end["level"], end["directory"]) == ("INFO", small)
        assert int(str(end["free_bytes"])) > DISK_BYTES // 2
        assert int(str(end["refused_writes"])) >= 31
        found = client.fetch(TOPIC, stored - 1, partition=full).responses[0].partitions[0]
        assert found.high_watermark == stored, "what was acknowledged, and nothing else"
        assert [one.value for one in read_records(bytes(found.records or b""))] == [VALUE]
