"""A real broker on real disks with a real client: killed, stopped, paused, or missing a disk.

Rounds on one data directory. A producer writes all the time and retries by itself; every round
a fault hits the broker at a random moment, and from time to time everything that was
acknowledged is read and compared.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from millstream.model.config.properties import render_properties
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.broker.client import (
    PARTITIONS,
    TOPIC,
    BrokerWriter,
    check_partition,
    read_all,
    send_and_receive,
)
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.peers.kafka import free_ports
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest

START_MAX_S: Final = 60.0
PROGRESS_MAX_S: Final = 120.0
"""A broker that acknowledges nothing for this long hangs."""
CHECK_EVERY: Final = 10
"""Rounds between two comparisons of everything, which read the whole log."""
DISKS: Final = ("one", "two")
CODECS: Final = ("none", "lz4", "zstd")

_SETTINGS: Final = {
    "broker.id": "1",
    "log.level": "WARN",
    "log.segment.bytes": "1048576",
    "log.retention.ms": "-1",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "auto.create.topics.enable": "false",
}

EVENTS: Final = ("kill", "kill in its start", "stop", "pause", "move and kill", "disk missing")


class BrokerChaos:
    """Rounds on one broker; `close` ends it."""

    def __init__(self, directory: str, seed: int) -> None:
        self._root = Path(directory)
        self._chance = SeededRandomness(f"broker chaos {seed}")
        (self._port,) = free_ports(1)
        self._bootstrap_servers = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None
        self._writer: BrokerWriter | None = None
        self._acknowledged: dict[int, list[tuple[int, int]]] = {
            one: [] for one in range(PARTITIONS)
        }
        self._next_number = 0
        self._round = 0
        self.counts: Counter[str] = Counter()

    # -- rounds ----------------------------------------------------------------------------

    def run_round(self) -> str:
        """Let the client write, inject a fault, start again; raises ChaosFailed."""
        self._round += 1
        if self._process is None:
            self._begin()
        writer = self._ensure_writer()
        before = writer.acknowledged_count
        self._wait_for(writer, self._chance.integer(50, 1500))
        event = self._chance.choice(EVENTS)
        time.sleep(self._chance.between(0, 0.05))
        self._inject(event)
        self._wait_for(writer, 1)
        self.counts[event] += 1
        self.counts["records acknowledged"] += writer.acknowledged_count - before
        if self._round % CHECK_EVERY == 0:
            self.check()
        return f"round {self._round}: {event}, {writer.acknowledged_count:,} acknowledged so far"

    def check(self) -> None:
        """Stop the writer, read everything, compare. Raises ChaosFailed."""
        if self._process is None:
            return
        self._end_writer()
        for partition, expected in self._acknowledged.items():
            check_partition(read_all(self._bootstrap_servers, partition), expected, partition)
        self.counts["read and compared"] += 1

    def close(self) -> None:
        """Kill the broker if it runs."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if process is not None and process.stdout is not None:
            process.stdout.close()

    def _begin(self) -> None:
        self._start()
        topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        created = send_and_receive(self._bootstrap_servers, request, 7).topics[0]
        if created.error_code:
            raise ChaosFailed(f"the topic was not created: {created.error_message}")

    # -- faults ----------------------------------------------------------------------------

    def _inject(self, event: str) -> None:
        match event:
            case "kill":
                self._end(signal.SIGKILL)
            case "kill in its start":
                self._end(signal.SIGKILL)
                self._spawn()
                time.sleep(self._chance.between(0, 0.5))
                self._end(signal.SIGKILL)
            case "stop":
                self._end(signal.SIGTERM)
            case "pause":
                self._pause()
                return
            case "move and kill":
                self._move()
                time.sleep(self._chance.between(0, 0.2))
                self._end(signal.SIGKILL)
            case _:
                self._end(self._chance.choice([signal.SIGKILL, signal.SIGTERM]))
                self._start_without_a_disk()
        self._start()

    def _pause(self) -> None:
        process = self._live_process()
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.between(0.1, 1.0))
        process.send_signal(signal.SIGCONT)

    def _move(self) -> None:
        target = str(self._disk(self._chance.choice(DISKS)))
        moved = self._chance.integer(0, PARTITIONS)
        topics = [AlterReplicaLogDirTopic(name=TOPIC, partitions=[moved])]
        move = AlterReplicaLogDir(path=target, topics=topics)
        answer = send_and_receive(
            self._bootstrap_servers, AlterReplicaLogDirsRequest(dirs=[move]), 2
        )
        code = ErrorCode(answer.results[0].partitions[0].error_code)
        if code is not ErrorCode.NONE:
            raise ChaosFailed(f"partition {moved} cannot be moved: {code.name}")

    def _start_without_a_disk(self) -> None:
        """The directory must be offline, and nothing may be created again in its place.

        Not the first one: it has the metadata, without which the broker does not start.
        """
        disk = self._disk(DISKS[1]).parent
        aside = disk.with_name("aside")
        is_needed = any((disk / "logs").glob(f"{TOPIC}-[0-9]"))
        disk.rename(aside)
        (disk / "logs").mkdir(parents=True)
        try:
            self._start()
            self._check_offline(str(disk / "logs"), is_needed=is_needed)
        finally:
            self._end(signal.SIGKILL)
        self._restore_disk(disk, aside, is_needed=is_needed)

    def _restore_disk(self, disk: Path, aside: Path, *, is_needed: bool) -> None:
        if is_needed and any((disk / "logs").iterdir()):
            raise ChaosFailed(f"something was written to the empty mount point {disk}")
        disk.rename(disk.with_name(f"instead-{self._round}"))
        aside.rename(disk)

    def _check_offline(self, path: str, *, is_needed: bool) -> None:
        answer = send_and_receive(self._bootstrap_servers, DescribeLogDirsRequest(topics=None), 4)
        codes = {one.log_dir: ErrorCode(one.error_code) for one in answer.results}
        is_offline = codes.get(path) is ErrorCode.KAFKA_STORAGE_ERROR
        if is_offline != is_needed:
            raise ChaosFailed(f"the absent directory {path} is described as {codes}")

    # -- the process -----------------------------------------------------------------------

    def _disk(self, name: str) -> Path:
        return self._root / name / "logs"

    def _spawn(self) -> None:
        config = self._root / "server.properties"
        dirs = ",".join(str(self._disk(name)) for name in DISKS)
        settings = {
            "listeners": f"PLAINTEXT://{self._bootstrap_servers}",
            "log.dirs": dirs,
            **_SETTINGS,
        }
        config.write_text(render_properties(settings))
        self.close()
        command = [sys.executable, "-m", "millstream.broker.process", "--config", str(config)]
        with (self._root / "stderr").open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ
            )

    def _start(self) -> None:
        self._spawn()
        process = self._live_process()
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line.startswith("ready: "):
            raise ChaosFailed(f"the broker did not start; see {self._root}/stderr")

    def _end(self, number: signal.Signals) -> None:
        process = self._live_process()
        if process.poll() is not None:
            raise ChaosFailed(f"the broker ended by itself with exit code {process.returncode}")
        process.send_signal(number)
        code = process.wait(START_MAX_S)
        expected = 0 if number == signal.SIGTERM else -number
        if code != expected:
            raise ChaosFailed(f"the broker ended with exit code {code} after {number.name}")

    def _live_process(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise ChaosFailed("there is no broker")
        return self._process

    # -- the client ------------------------------------------------------------------------

    def _ensure_writer(self) -> BrokerWriter:
        if self._writer is None:
            codec = self._chance.choice(CODECS)
            self._writer = BrokerWriter(
                self._bootstrap_servers, codec=codec, first_number=self._next_number
            )
        return self._writer

    def _end_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.stop()
        self._next_number = writer.next_number
        for partition, records in writer.acknowledged.items():
            self._acknowledged[partition] += records

    def _wait_for(self, writer: BrokerWriter, records: int) -> None:
        enough, deadline_s = writer.acknowledged_count + records, time.monotonic() + PROGRESS_MAX_S
        while writer.acknowledged_count < enough:
            if writer.failures or time.monotonic() > deadline_s:
                why = writer.failures[:1] or f"nothing for {PROGRESS_MAX_S:.0f} s"
                raise ChaosFailed(f"the producer makes no progress: {why}")
            if self._live_process().poll() is not None:
                raise ChaosFailed(f"the broker ended by itself; see {self._root}/stderr")
            time.sleep(0.005)
