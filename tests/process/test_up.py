"""`millstream up` and `millstream broker` as processes: the ready line, files, signals, deaths."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.process.broker_process import broker_process
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch
from millstream.testing.record_batches import BatchSpec
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.metadata import MetadataRequest

NOW_MS = int(time.time() * 1000)
MILLSTREAM = [sys.executable, "-m", "millstream.cli.main"]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process, and where it says clients find it."""
    process = subprocess.Popen(
        [*MILLSTREAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: "), process.communicate(timeout=20)
        yield process, line.removeprefix("ready: ").strip()
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=40)


def pid_of(data: Path) -> int:
    return int((data / "broker-1" / "millstream.pid").read_text())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_up_is_ready_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path) as (process, place):
        with WireClient(place) as client:
            client.create_topic("events")
            assert client.produce("events", build_batch([(b"k", b"v")])).responses
        pid = pid_of(tmp_path)
        assert is_alive(pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not is_alive(pid)
    assert not (tmp_path / "broker-1" / "millstream.pid").exists()


def test_ctrl_c_stops_it_cleanly_and_the_data_is_there_again_on_the_same_port(
    tmp_path: Path,
) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path) as (process, place):
        with WireClient(place) as client:
            client.create_topic("events")
            client.produce("events", build_batch([(b"k", b"v")]))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (tmp_path / "broker-1" / "data" / ".kafka_cleanshutdown").exists()
    with running("up", "--data-dir", tmp_path) as (_, again):
        assert again == place
        with WireClient(again) as client:
            found = client.fetch("events", 0).responses[0].partitions[0]
            assert found.high_watermark == 1


def test_ctrl_c_while_it_starts_is_no_failure(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*MILLSTREAM, "up", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: any(tmp_path.glob("keeper/log.*")), "the brokers are about to be started")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 0
    assert "millstream:" not in errors


def test_a_dead_broker_is_told_and_one_started_by_hand_is_stopped_with_the_rest(
    tmp_path: Path,
) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path) as (process, place):
        os.kill(pid_of(tmp_path), signal.SIGKILL)
        assert process.stderr is not None
        told = next(line for line in process.stderr if "exited" in line)
        assert "broker 1" in told
        assert "exited (signal 9); restart it with" in told
        assert process.poll() is None
        settings = tmp_path / "broker-1" / "server.properties"
        assert f"`millstream broker --config {settings}`" in told
        with running("broker", "--config", settings) as (by_hand, again):
            assert again == place
            assert pid_of(tmp_path) == by_hand.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert by_hand.wait(30) == 0


def test_a_second_up_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path):
        second = subprocess.run(
            [*MILLSTREAM, "up", "--port", "0", "--data-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert second.returncode == 1
    assert "is already running" in second.stderr


def test_a_copy_of_a_directory_that_is_in_use_starts_by_itself(tmp_path: Path) -> None:
    """Its pid file is a copy, too: the process that it names serves the original."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    with running("up", "--port", "0", "--data-dir", original):
        shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.lock", ".lock"))
        with running("up", "--port", "0", "--data-dir", copy):
            assert pid_of(copy) != pid_of(original)


def test_a_settings_file_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path):
        pass
    settings = tmp_path / "broker-1" / "server.properties"
    settings.write_bytes(settings.read_bytes() + "# für\n".encode("latin-1"))
    again = subprocess.run(
        [*MILLSTREAM, "up", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == 1
    assert "is not UTF-8" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "data"
    done = subprocess.run(
        [*MILLSTREAM, "up", "--port", "0", "--data-dir", str(place)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    reason, hint = done.stderr.splitlines()
    assert str(place) in reason
    assert "--data-dir" in hint


def test_on_all_addresses_clients_are_told_the_one_they_came_to(tmp_path: Path) -> None:
    """By every loopback address there is; the machine's name need not mean anything to them."""
    arguments = ("up", "--host", "0.0.0.0", "--port", "0", "--data-dir", tmp_path)
    with running(*arguments) as (_, place):
        port = int(place.rpartition(":")[2])
        for host in ("127.0.0.1", "127.0.0.2"):
            with WireClient(f"{host}:{port}") as client:
                (broker,) = client.send(MetadataRequest(topics=[]), 12).brokers
                assert (broker.host, broker.port) == (host, port)


def test_brokers_have_a_rack_only_where_one_is_asked_for(tmp_path: Path) -> None:
    """As in Kafka, where `broker.rack` is unset. Once set it is kept."""
    name = socket.gethostname()
    for options, rack in (((), None), (("--racks",), name), ((), name)):
        arguments = ("up", "--port", "0", "--data-dir", tmp_path, *options)
        with running(*arguments) as (_, place), WireClient(place) as client:
            (broker,) = client.send(MetadataRequest(topics=[]), 12).brokers
            assert broker.rack == rack


@needs_ipv6
def test_an_ipv6_address_is_told_and_kept_with_its_brackets(tmp_path: Path) -> None:
    with running("up", "--host", "::1", "--port", "0", "--data-dir", tmp_path) as (_, place):
        assert place.startswith("[::1]:")
        with WireClient(place) as client:
            client.create_topic("events")
        settings = (tmp_path / "broker-1" / "server.properties").read_text()
        assert f"listeners=PLAINTEXT://{place}\n" in settings
    with running("up", "--data-dir", tmp_path) as (_, again):
        assert again == place


@pytest.mark.parametrize("count", ["0", "65"])
def test_a_number_of_brokers_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, count: str
) -> None:
    done = subprocess.run(
        [*MILLSTREAM, "up", "--brokers", count, "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"--brokers {count}" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path / "one") as (_, place):
        port = place.rpartition(":")[2]
        done = subprocess.run(
            [*MILLSTREAM, "up", "--port", port, "--data-dir", str(tmp_path / "two")],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    reason, hint = done.stderr.splitlines()
    assert reason.startswith("millstream: broker 1 did not start: "), "and not that it died, too"
    assert f":{port}: " in reason
    assert "--port" in hint


def test_everything_acknowledged_survives_kill_9_of_up_and_broker(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data-dir", tmp_path) as (process, place):
        with WireClient(place) as client:
            client.create_topic("events", 3)
            for number in range(50):
                answer = client.produce(
                    "events", build_batch([(b"k", b"%d" % number)]), partition=number % 3
                )
                assert answer.responses[0].partition_responses[0].error_code == 0
        broker = pid_of(tmp_path)
        os.kill(broker, signal.SIGKILL)
        until(lambda: not is_alive(broker), "the broker is gone")
        process.kill()
        process.wait(20)
    with running("up", "--data-dir", tmp_path) as (_, again), WireClient(again) as client:
        ends = [
            client.fetch("events", 0, partition=index).responses[0].partitions[0].high_watermark
            for index in range(3)
        ]
        assert ends == [17, 17, 16]


def test_a_moved_data_directory_is_served_where_it_is_now(tmp_path: Path) -> None:
    with (
        running("up", "--port", "0", "--data-dir", tmp_path / "old") as (_, place),
        WireClient(place) as client,
    ):
        client.create_topic("events")
        client.produce("events", build_batch([(b"k", b"v")]))
    (tmp_path / "old").rename(tmp_path / "new")
    with (
        running("up", "--data-dir", tmp_path / "new") as (_, place),
        WireClient(place) as client,
    ):
        assert client.fetch("events", 0).responses[0].partitions[0].high_watermark == 1
    assert not (tmp_path / "old").exists()


def test_an_address_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MILLSTREAM, "up", "--host", "192.0.2.1", "--port", "0", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "192.0.2.1" in done.stderr
    with running("up", "--port", "0", "--data-dir", tmp_path) as (_, place):
        assert place.startswith("127.0.0.1:")


def test_the_order_of_log_directories_does_not_matter(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    forth, back = {"log.dirs": f"{one},{two}"}, {"log.dirs": f"{two},{one}"}
    with broker_process(tmp_path, forth) as first, first.client() as client:
        client.create_topic("events", 4, retention_ms="12345678")
        client.produce("events", build_batch([(b"k", b"v")], BatchSpec(timestamp_ms=NOW_MS)))
    with broker_process(tmp_path, back) as second, second.client() as client:
        asked = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name="events")]
        )
        told = {one.name: one.value for one in client.send(asked, 4).results[0].configs}
        assert told["retention.ms"] == "12345678"
        assert client.fetch("events", 0).responses[0].partitions[0].high_watermark == 1
    assert not (tmp_path / "two" / "metadata").exists()


@pytest.mark.parametrize("count", ["1", "2"])
def test_brokers_stop_in_order_when_up_is_killed(tmp_path: Path, count: str) -> None:
    """Nothing would stop them, or run their keeper, any more."""
    data = tmp_path / "data"
    with running("up", "--port", "0", "--brokers", count, "--data-dir", data) as (process, place):
        with WireClient(place.split(",")[0]) as client:
            client.create_topic("events", 1)
        brokers = [data / f"broker-{number + 1}" for number in range(int(count))]
        pids = [int((one / "millstream.pid").read_text()) for one in brokers]
        process.kill()
        process.wait(20)
        until(lambda: not any(map(is_alive, pids)), "the brokers are gone", timeout_s=15)
    for one in brokers:
        assert not (one / "millstream.pid").exists()
        assert (one / "data" / ".kafka_cleanshutdown").exists()
    with running("up", "--data-dir", data) as (_, again), WireClient(again.split(",")[0]) as client:
        assert client.fetch("events", 0).responses[0].partitions[0].error_code in (0, 6)


def test_a_broker_stops_when_its_lifeline_ends_and_not_before(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n")
    process = subprocess.Popen(
        [*MILLSTREAM, "broker", "--lifeline", "0", "--config", str(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready: ")
    process.stdin.write(b"words mean nothing")
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    _, errors = process.communicate(timeout=20)  # which closes it
    assert process.returncode == 0
    assert b"parent process is gone" in errors
