"""Our writer of columns with real brokers of ours: the stories, kills, time, the blocking face."""

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kits.client.our_writer import (
    STORIES,
    Story,
    client_of,
    read_all,
    topic_of,
    write_through_kills,
)
from kits.process.broker_process import broker_process
from millstream.client.errors import BrokersUnreachable, ClientClosed, ClientError
from millstream.client.produce.errors import BufferFull
from millstream.testing.broker_thread import BrokerThread


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(servers: str, story: Story) -> None:
    story(servers, story.__name__.replace("_", "-"))


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path) as first:
        port = int(first.bootstrap_servers.rpartition(":")[2])
        running = [first]
        following = []

        def kill_and_restart() -> None:
            running[-1].kill()
            context = broker_process(tmp_path, port=port)
            running.append(context.__enter__())
            following.append(context)

        try:
            write_through_kills(first.bootstrap_servers, "killed", kill_and_restart)
        finally:
            for context in reversed(following):
                context.__exit__(None, None, None)


def test_back_pressure_ends_in_the_named_time(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        configs = {"buffer_memory": 1_000_000, "max_block_ms": 1500}
        with client_of(broker.bootstrap_servers, **configs) as client:
            topic_of(client, "full")
            writer = client.column_writer(topic="full")
            batch = pa.record_batch({"value": pa.array([b"x" * 100] * 7000)})
            writer.write(batch)
            writer.flush()
            broker.kill()
            begun_s = time.monotonic()
            writer.write(batch)
            with pytest.raises(BufferFull, match="buffer"):
                writer.write(batch)
            assert time.monotonic() - begun_s < 4
            writer.abort()


def test_without_a_broker_the_first_write_ends_in_the_named_time() -> None:
    with (
        client_of("127.0.0.1:1", max_block_ms=1000) as client,
        client.column_writer(topic="t") as writer,
    ):
        begun_s = time.monotonic()
        with pytest.raises(BrokersUnreachable, match=r"127\.0\.0\.1:1"):
            writer.write(pa.record_batch({"value": pa.array(["v"])}))
        assert time.monotonic() - begun_s < 3


def test_undelivered_records_are_told_within_delivery_timeout(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        configs = {"delivery_timeout_ms": 2000, "request_timeout_ms": 1000}
        with client_of(broker.bootstrap_servers, **configs) as client:
            topic_of(client, "late")
            writer = client.column_writer(topic="late")
            batch = pa.record_batch({"value": pa.array(["v"])})
            writer.write(batch)
            writer.flush()
            broker.kill()
            begun_s = time.monotonic()
            writer.write(batch)
            with pytest.raises(ClientError, match=r"(within|after) 2 s.*delivery\.timeout\.ms"):
                writer.flush()
            assert time.monotonic() - begun_s < 4
            writer.abort()


def test_threads_take_turns(servers: str) -> None:
    with client_of(servers) as client:
        topic_of(client, "threads", 2)
        with client.column_writer(topic="threads") as writer:

            def work(number: int) -> None:
                values = [f"{number}-{row}" for row in range(20_000)]
                for start in range(0, 20_000, 4000):
                    writer.write(pa.record_batch({"value": pa.array(values[start : start + 4000])}))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join(60)
            told = writer.flush()
    assert sum(one.records for one in told.values()) == 80_000
    read_all(servers, "threads", 2, 80_000)


def test_a_writer_ends_with_its_client_and_others_of_the_client_do_not(servers: str) -> None:
    batch = pa.record_batch({"value": pa.array(["v"] * 10)})
    with client_of(servers) as client:
        topic_of(client, "ends")
        one, other = client.column_writer(topic="ends"), client.column_writer(topic="ends")
        is_idle = client.is_idle
        assert not is_idle
        one.write(batch)
        one.abort()
        with pytest.raises(ClientClosed):
            one.write(batch)
        one.close()
        other.write(batch)
        assert sum(told.records for told in other.flush().values()) == 10
        other.close()
        is_idle = client.is_idle
        assert is_idle
        last = client.column_writer(topic="ends")
    with pytest.raises(ClientClosed):
        last.write(batch)
    last.abort()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_writers_of_its_own_alone(servers: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"x" * 100] * 7000)})
    with client_of(servers) as client:
        topic_of(client, "forked")
        with client.column_writer(topic="forked") as writer:
            writer.write(batch)
            fork = multiprocessing.get_context("fork")
            inbox = fork.SimpleQueue()

            def child() -> None:
                try:
                    writer.write(batch)
                except ClientClosed:
                    with client.column_writer(topic="forked") as own:
                        own.write(batch)
                        inbox.put(sum(told.records for told in own.flush().values()))

            process = fork.Process(target=child)
            process.start()
            process.join(30)
            assert process.exitcode == 0
            assert inbox.get() == 7000
            writer.write(batch)
            assert sum(told.records for told in writer.flush().values()) == 14_000
    read_all(servers, "forked", 1, 21_000)


def test_tables_are_written_and_other_things_refused(servers: str) -> None:
    with client_of(servers) as client:
        topic_of(client, "tables")
        table = pa.table({"value": pa.chunked_array([[b"1", b"2"], [], [b"3"]])})
        with client.column_writer(topic="tables") as writer:
            writer.write(table)
            writer.write(table.slice(0, 0))
            for wrong in ([b"x"], {"value": [b"x"]}, table.column("value"), None):
                with pytest.raises(TypeError, match=r"pyarrow\.Table, not "):
                    writer.write(wrong)
    assert [one.value for one in read_all(servers, "tables", 1, 3)[0]] == [b"1", b"2", b"3"]


def test_a_writer_that_is_left_with_rows_warns(servers: str) -> None:
    rows = pa.record_batch({"value": [b"x"]})
    with client_of(servers, linger_ms=60_000) as client:
        topic_of(client, "left")
        writer = client.column_writer(topic="left")
        writer.write(rows)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del writer
        for ends in (True, False):  # nothing is unsent: nothing to warn of
            writer = client.column_writer(topic="left")
            writer.write(rows)
            writer.flush()
            if ends:
                writer.close()
            del writer
            gc.collect()


def test_a_writer_that_is_open_at_the_end_of_the_program_warns(servers: str) -> None:
    program = """
import sys
import pyarrow as pa
from millstream.client.blocking import client_for
client = client_for({"bootstrap.servers": sys.argv[1], "linger.ms": 60_000})
writer = client.column_writer(topic="left")
writer.write(pa.record_batch({"value": [b"x"]}))
"""
    with client_of(servers) as client:
        if "left" not in client.topics():
            topic_of(client, "left")
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program, servers],
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "ResourceWarning: a ColumnWriter was not closed" in done.stderr
