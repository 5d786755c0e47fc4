"""`millstream consume` with a real broker: what it prints, where it begins, how it ends."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kits.client.our_client import NOW_MS, created
from kits.client.reading_stories import produce_values, servers
from millstream.client.blocking import BlockingClient
from millstream.client.settings import ClientSettings
from millstream.model.ids import TopicPartition
from millstream.testing.broker_thread import BrokerThread

COMMAND = (sys.executable, "-m", "millstream.cli.main", "consume")


@pytest.fixture(scope="module")
def client() -> Iterator[BlockingClient]:
    with BrokerThread() as broker:
        configs = {"bootstrap.servers": broker.bootstrap_servers}
        with BlockingClient(ClientSettings.from_configs(configs)) as made:
            created(made, "numbers", 2, retention_ms="-1")
            producer = Producer(configs)
            for number in range(10):
                producer.produce(
                    "numbers",
                    key=None if number == 3 else b"k%d" % number,
                    value=None if number == 4 else b"v%d" % number,
                    partition=number % 2,
                    timestamp=NOW_MS + number,
                    headers=[("h", b"\xff"), ("n", None)] if number == 5 else [],
                )
            assert producer.flush(30) == 0
            yield made


def run(client: BlockingClient, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*COMMAND, *arguments, "-b", servers(client)], capture_output=True, timeout=60, check=False
    )


def lines(client: BlockingClient, *arguments: str) -> list[bytes]:
    done = run(client, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("--from-beginning", "--partition", "1"), [b"v1", b"v3", b"v5", b"v7", b"v9"]),
        (("--from-beginning", "-p", "0", "-n", "3"), [b"v0", b"v2", b"null"]),
        (("--offset", "3", "-p", "1"), [b"v7", b"v9"]),
        (("--offset", "-2", "-p", "0"), [b"v6", b"v8"]),
        (("--timestamp", str(NOW_MS + 6), "-p", "0"), [b"v6", b"v8"]),
        (("--timestamp", str(NOW_MS + 60)), []),
        ((), []),
        (
            ("--from-beginning", "-p", "1", "--format", "key-value", "-n", "2"),
            [b"k1\tv1", b"null\tv3"],
        ),
        (
            ("--offset", "2", "-p", "1", "-n", "1", "--format", "full"),
            [b"1\t2\t%d\th=\xff,n=null\tk5\tv5" % (NOW_MS + 5)],
        ),
    ],
)
def test_what_is_printed(
    client: BlockingClient, arguments: tuple[str, ...], printed: list[bytes]
) -> None:
    assert lines(client, "numbers", "--until-end", *arguments) == printed


def test_all_partitions_and_json(client: BlockingClient) -> None:
    printed = lines(client, "numbers", "--from-beginning", "--until-end", "--format", "json")
    rows = sorted((json.loads(one) for one in printed), key=lambda one: str(one["timestamp"]))
    assert [row["value"] for row in rows] == [None if at == 4 else f"v{at}" for at in range(10)]
    assert rows[5] == {
        "topic": "numbers",
        "partition": 1,
        "offset": 2,
        "timestamp": NOW_MS + 5,
        "timestampType": "CreateTime",
        "key": "k5",
        "value": "v5",
        "headers": [{"key": "h", "valueBase64": "/w=="}, {"key": "n", "value": None}],
    }


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("nothing",), 1, b"topic 'nothing' does not exist"),
        (("numbers", "-p", "7"), 1, b"no partition 7"),
        (("numbers", "--offset", "3"), 2, b"--partition"),
        (("numbers", "--offset", "99", "-p", "0"), 1, b"the log ends at 5"),
        (("numbers", "--offset", "6", "-p", "0", "--until-end"), 1, b"the log ends at 5"),
        (("numbers", "--offset", "9223372036854775808", "-p", "0"), 2, b"--offset 9223372036"),
        (("numbers", "--offset", "99999999999999999999", "-p", "0"), 2, b"must be an integer"),
        (("numbers", "--offset", "9223372036854775807", "-p", "0"), 1, b"the log ends at 5"),
        (("numbers", "--timestamp", "9223372036854775808"), 2, b"--timestamp"),
        (("numbers", "-p", "99999999999"), 2, b"--partition"),
        (("numbers", "-n", "0"), 2, b"--max-messages"),
        (("numbers", "--timeout", "nan"), 2, b"--timeout nan: must be a number of seconds"),
        (("numbers", "--from-beginning", "--timestamp", "5"), 2, b"mutually exclusive"),
        (("numbers", "--timestamp", "-5"), 2, b"since the epoch"),
        (("numbers", "-b", "nowhere"), 2, b"host:port"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    client: BlockingClient, arguments: tuple[str, ...], code: int, told: bytes
) -> None:
    wrong = "-b" in arguments
    done = (
        subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=60, check=False)
        if wrong
        else run(client, *arguments)
    )
    assert (done.returncode, done.stdout) == (code, b"")
    assert told in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("redirection", "told"),
    [(">&-", "standard output is closed"), ("> /dev/full", "standard output: No space left")],
)
def test_an_output_that_takes_nothing_is_one_line(
    client: BlockingClient, redirection: str, told: str
) -> None:
    for command in ("consume numbers --from-beginning", "topics list", "topics describe numbers"):
        line = f"{shlex.join(COMMAND[:-1])} {command} -b {servers(client)} {redirection}"
        done = subprocess.run(
            ["sh", "-c", line], stderr=subprocess.PIPE, timeout=60, check=False, text=True
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"millstream: {told}")
        assert done.stderr.count("\n") == 1


def test_new_records_are_printed_until_ctrl_c(client: BlockingClient) -> None:
    created(client, "coming")
    here = TopicPartition("coming", 0)
    command = [*COMMAND, "coming", "--from-beginning", "-b", servers(client)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for number in range(3):
            produce_values(client, here, b"%d" % number)
            assert process.stdout.readline() == b"%d\n" % number
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (130, b"", b"")


WAITS_FOR_EVER = """
import signal, threading
from millstream.cli.failure import interrupted_at_once

lock = threading.Lock()
with interrupted_at_once():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    print("waiting", flush=True)
    with lock, lock:
        pass
"""


def test_ctrl_c_ends_it_though_the_main_thread_does_not_come_back_from_its_wait() -> None:
    """As when the signal arrives after Python looked for one and before the wait began."""
    command = [sys.executable, "-c", WAITS_FOR_EVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()


def test_a_reader_that_goes_away_ends_it(client: BlockingClient) -> None:
    created(client, "piped")
    here = TopicPartition("piped", 0)
    for _ in range(30):
        produce_values(client, here, *[b"x" * 1000] * 100)
    command = [*COMMAND, "piped", "--from-beginning", "-b", servers(client)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        process.wait(20)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read()) == (141, b"")
