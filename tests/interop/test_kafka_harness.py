"""The peer itself: it starts, stops, dies when told to, and leaves nothing behind."""

import os
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kits.interop.kafka_reference import read_reference
from millstream.testing.peers.kafka import ApacheKafka, PeerFailedError

pytestmark = pytest.mark.interop

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def running(kafka: ApacheKafka) -> int:
    process_id = kafka.process_id
    assert process_id is not None
    return process_id


def write_one(kafka: ApacheKafka, value: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce("kept", value=value)
    assert producer.flush(30) == 0


def values(kafka: ApacheKafka) -> list[bytes | None]:
    reference = read_reference(kafka.bootstrap_servers, {"kept": {}})
    return [record.value for record in reference["kept-0"].uncommitted]


def test_data_outlives_a_clean_stop_and_a_kill(jars: Path, tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
        first_process = running(kafka)
        write_one(kafka, "one")
        kafka.stop()
        assert not is_alive(first_process)
        assert (kafka.data_directory / CLEAN_SHUTDOWN).exists()

        kafka.start()
        assert not (kafka.data_directory / CLEAN_SHUTDOWN).exists()
        second_process = running(kafka)
        write_one(kafka, "two")
        kafka.kill()
        assert not is_alive(second_process)
        assert not (kafka.data_directory / CLEAN_SHUTDOWN).exists()

        kafka.start()
        assert values(kafka) == [b"one", b"two"]
        last_process = running(kafka)
    assert not is_alive(last_process)


def test_failing_test_shows_the_log_and_leaves_no_process(jars: Path, tmp_path: Path) -> None:
    processes: list[int] = []

    def failing_test() -> None:
        with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka:
            processes.append(running(kafka))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        failing_test()
    assert not is_alive(processes[0])
    assert "Kafka Server started" in "".join(failure.value.__notes__)


def test_settings_that_kafka_refuses_are_told(jars: Path, tmp_path: Path) -> None:
    settings = {"log.segment.bytes": "1024"}
    kafka = ApacheKafka(tmp_path / "kafka", jars=jars, settings=settings)
    with pytest.raises(PeerFailedError, match=r"log\.segment\.bytes"):
        kafka.start()
    assert kafka.process_id is None
