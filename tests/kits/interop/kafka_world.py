"""Data directories written by a real Kafka, with what clients read from them while it ran.

Two of them: `clean` after a shutdown in order, `unclean` after it went on for a while under a new
leader epoch and was killed. Made once per version of this code, shared by all test processes.
"""

import hashlib
import inspect
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from confluent_kafka.admin import AdminClient

from kits.interop import kafka_reference, kafka_workload
from kits.interop.kafka_reference import Reference, load_reference, read_reference, save_reference
from kits.interop.kafka_workload import COMPACTED_TOPICS, DELETED_UP_TO, TOPICS, Workload
from kits.interop.waiting import wait_until
from millstream.testing.peers.kafka import KAFKA_VERSION, ApacheKafka
from millstream.testing.peers.runtimes import file_lock

SETTINGS: Final = {
    "log.retention.ms": "-1",  # the records are dated 2023
    "log.index.size.max.bytes": "131072",
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
}


@dataclass(frozen=True, slots=True)
class KafkaDirectory:
    """One log directory of Kafka's. Never opened in place: tests take a copy."""

    path: Path
    reference: Reference

    def copy_to(self, target: Path) -> Path:
        """A copy that may be changed; indexes keep their holes."""
        copy_tree(self.path, target)
        return target


@dataclass(frozen=True, slots=True)
class KafkaWorld:
    """Both directories."""

    clean: KafkaDirectory
    unclean: KafkaDirectory


def kafka_world(cache: Path, jars: Path) -> KafkaWorld:
    """The directories from `cache`, made first when this code or Kafka's version is new."""
    directory = cache / f"world-{_fingerprint()}"
    with file_lock(cache / "world.lock"):
        if not directory.exists():
            building = directory.with_name(directory.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            _build(building, jars)
            building.rename(directory)
    return KafkaWorld(clean=_load(directory / "clean"), unclean=_load(directory / "unclean"))


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory; a preallocated index stays sparse."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def _fingerprint() -> str:
    modules: list[ModuleType] = [kafka_workload, kafka_reference]
    this = inspect.getmodule(_fingerprint)
    sources = [inspect.getsource(module) for module in [*modules, this] if module is not None]
    return hashlib.sha256("\0".join([KAFKA_VERSION, *sources]).encode()).hexdigest()[:12]


def _load(directory: Path) -> KafkaDirectory:
    return KafkaDirectory(directory / "data", load_reference(directory / "reference.json"))


def _build(building: Path, jars: Path) -> None:
    building.mkdir(parents=True)
    kafka = ApacheKafka(building / "kafka", jars=jars, settings=SETTINGS)
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        first = Workload(kafka.bootstrap_servers)
        first.create_topics(admin)
        first.write_everything()
        first.delete_records(admin)
        wait_until("deleted segments gone", lambda: is_deleted(kafka.data_directory))
        wait_until("cleaner done", lambda: is_cleaned(kafka.data_directory))
        reference = read_reference(kafka.bootstrap_servers, TOPICS)
        kafka.stop()
        _keep(building / "clean", kafka, reference)
        kafka.start()
        Workload(kafka.bootstrap_servers, phase=2).write_more()
        reference = read_reference(kafka.bootstrap_servers, TOPICS)
        kafka.kill()
        _keep(building / "unclean", kafka, reference)
    shutil.rmtree(kafka.directory)


def _keep(target: Path, kafka: ApacheKafka, reference: Reference) -> None:
    target.mkdir()
    copy_tree(kafka.data_directory, target / "data")
    save_reference(target / "reference.json", reference)


def is_deleted(data: Path) -> bool:
    """Whether the files below the new start are gone, and the checkpoint knows the start."""
    names = [path.name for path in (data / "deleted-0").iterdir()]
    is_gone = f"{0:020}.log" not in names and not any(n.endswith(".deleted") for n in names)
    return (
        is_gone
        and f"deleted 0 {DELETED_UP_TO}" in (data / "log-start-offset-checkpoint").read_text()
    )


def is_cleaned(data: Path) -> bool:
    """Whether the cleaner reached the active segment of every compacted topic."""
    cleaned = (data / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    return all(
        f"{topic} 0 {_active_base_offset(data / f'{topic}-0')}" in cleaned
        and not list((data / f"{topic}-0").glob("*.*.*"))
        for topic in COMPACTED_TOPICS
    )


def _active_base_offset(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))
