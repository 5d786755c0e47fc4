"""Kafka's own judgement of a partition directory: its dump tool, and a broker that serves it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kits.interop.kafka_reference import Reference, read_reference
from kits.interop.kafka_world import copy_tree
from millstream.testing.peers.dump import Dump, DumpedBatch
from millstream.testing.peers.dump_tool import IndexCheck, dump_log, dumpable_files
from millstream.testing.peers.kafka import ApacheKafka

INDEX_SUFFIXES: Final = (".index", ".timeindex")
ENTRY_BYTES: Final = {".index": 8, ".timeindex": 12, ".txnindex": 34}
TIMEOUT_S: Final = 30.0


def assert_kafka_reads(
    directory: Path,
    *,
    jars: Path,
    batches: Sequence[DumpedBatch] | None = None,
    allow_gaps: bool = False,
) -> Dump:
    """Dump every file of the directory: no complaint, whole indexes, and exactly these batches.

    The expected batches are compared without their records when they have none. Offsets may jump
    only where the log was compacted.
    """
    files = dumpable_files(directory)
    assert files, f"nothing to read in {directory}"
    torn = [path for path in files if path.stat().st_size % ENTRY_BYTES.get(path.suffix, 1)]
    assert torn == []
    dump = dump_log(files, jars=jars)
    assert dump.complaints == []
    assert set(dump.files) == {str(path) for path in files}
    assert allow_gaps or dump.gaps == []
    indexes = [path for path in files if path.suffix in INDEX_SUFFIXES]
    sane = dump_log(indexes, jars=jars, index_check=IndexCheck.SANITY)
    assert sane.complaints == []
    if batches is not None:
        assert list(_comparable(dumped_batches(dump, directory), batches)) == list(batches)
    return dump


def dumped_batches(dump: Dump, directory: Path) -> list[DumpedBatch]:
    """All batches of the partition in order."""
    logs = sorted(directory.glob("*.log"))
    return [batch for path in logs for batch in dump.file(path).batches]


def _comparable(
    dumped: Sequence[DumpedBatch], expected: Sequence[DumpedBatch]
) -> Iterator[DumpedBatch]:
    with_records = any(batch.records for batch in expected)
    for batch in dumped:
        if not with_records:
            batch.records.clear()
        yield batch


def read_through_kafka(
    directory: Path,
    partitions: Mapping[str, Path],
    *,
    jars: Path,
    is_clean: bool,
    log_starts: Mapping[str, int] | None = None,
    topic_config: Mapping[str, str] | None = None,
) -> Reference:
    """Put partition directories (by topic, partition 0) under a new Kafka and read all of it.

    With `is_clean` Kafka takes indexes and snapshots as they are; otherwise it recovers every
    segment. Leader epochs in them must not exceed 2, the one that the broker gives itself.
    """
    config = {"retention.ms": "-1", **(topic_config or {})}
    with ApacheKafka(directory, jars=jars) as kafka:
        _create_topics(kafka, partitions, config)
        kafka.stop()
        for topic, source in partitions.items():
            _replace_files(kafka.data_directory / f"{topic}-0", source)
        _write_checkpoint(kafka.data_directory / "log-start-offset-checkpoint", log_starts or {})
        if not is_clean:
            (kafka.data_directory / ".kafka_cleanshutdown").unlink()
        kafka.start()
        wanted = {topic: dict(config) for topic in partitions}
        return read_reference(kafka.bootstrap_servers, wanted)


def _create_topics(
    kafka: ApacheKafka, partitions: Mapping[str, Path], config: dict[str, str]
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    wanted = [NewTopic(topic, 1, 1, config=config) for topic in partitions]
    for future in admin.create_topics(wanted).values():
        future.result(TIMEOUT_S)


def _replace_files(target: Path, source: Path) -> None:
    """Everything but `partition.metadata`, whose topic id must stay the cluster's own."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name != "partition.metadata":
            copy_tree(path, target / path.name)


def _write_checkpoint(path: Path, offsets: Mapping[str, int]) -> None:
    lines = ["0", str(len(offsets)), *(f"{topic} 0 {at}" for topic, at in offsets.items()), ""]
    path.write_text("\n".join(lines))
