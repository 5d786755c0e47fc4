"""`millstream topics` with a real broker: what it prints, and how it ends."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kits.process.cli_kit import Outcome, millstream
from millstream.testing.broker_thread import BrokerThread


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.bootstrap_servers


def topics(command: str, servers: str, *arguments: str) -> Outcome:
    return millstream("topics", command, "--bootstrap-server", servers, *arguments)


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_a_topic_from_its_making_to_its_end(servers: str) -> None:
    options = ["--partitions", "2", "--replication-factor", "1"]
    options += ["--config", "retention.ms=5000", "--config", "cleanup.policy=compact,delete"]
    done = topics("create", servers, "orders", *options)
    assert (done.code, done.err) == (0, "")
    ((verb, name, identity, *numbers),) = rows(done.out)
    assert (verb, name, numbers) == ("created", "orders", ["partitions=2", "replicas=1"])

    done = topics("list", servers)
    assert (done.code, done.out) == (0, "orders\n")

    done = topics("describe", servers, "orders")
    assert (done.code, done.err) == (0, "")
    assert rows(done.out) == [
        ["topic", "orders", identity, "partitions=2", "replicas=1", "internal=false"],
        ["config", "orders", "cleanup.policy=compact,delete"],
        ["config", "orders", "retention.ms=5000"],
        ["partition", "orders", "0", "leader=1", "epoch=0", "replicas=1", "isr=1"],
        ["partition", "orders", "1", "leader=1", "epoch=0", "replicas=1", "isr=1"],
    ]
    assert topics("describe", servers).out == done.out

    done = topics("delete", servers, "orders")
    assert (done.code, done.out, done.err) == (0, "deleted\torders\n", "")
    assert topics("list", servers).out == ""


def test_the_brokers_defaults_are_told(servers: str) -> None:
    done = topics("create", servers, "plain")
    assert rows(done.out)[0][3:] == ["partitions=1", "replicas=1"]
    topics("delete", servers, "plain")


def test_what_cannot_be_done_is_a_line_each_and_does_not_stop_the_rest(servers: str) -> None:
    topics("create", servers, "one")
    done = topics("create", servers, "one", "bad name", "two")
    assert done.code == 1
    assert [row[1] for row in rows(done.out)] == ["two"]
    first, second = done.err.splitlines()
    assert first.startswith("millstream: topic 'one' already exists")
    assert second.startswith("millstream: invalid topic 'bad name'")
    done = topics("describe", servers, "two", "three")
    assert (done.code, done.err) == (
        1,
        "millstream: topic 'three' does not exist; create it, or correct the name\n",
    )
    assert rows(done.out)[0][1] == "two"
    done = topics("delete", servers, "one", "two", "three")
    assert (done.code, len(done.out.splitlines()), len(done.err.splitlines())) == (1, 2, 1)


@pytest.mark.parametrize("config", ["retention.ms", "=5", ""])
def test_a_setting_without_a_value_is_refused(servers: str, config: str) -> None:
    done = topics("create", servers, "x", "--config", config)
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == f"millstream: --config {config}: must be KEY=VALUE, for example retention.ms=60000\n"
    )


def test_a_wrong_setting_is_told_in_the_brokers_words(servers: str) -> None:
    done = topics("create", servers, "x", "--config", "retention.ms=soon")
    assert done.code == 1
    assert "retention.ms" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_address_that_cannot_be(servers: str) -> None:
    done = topics("list", "nowhere")
    assert done.code == 2
    assert "host:port" in done.err
    assert len(done.err.splitlines()) == 1


def test_nobody_there_is_told_within_the_time() -> None:
    begin = time.monotonic()
    done = topics("list", "127.0.0.1:1", "--timeout", "1")
    assert done.code == 1
    assert done.err.startswith("millstream: no broker could be reached within 1 s (127.0.0.1:1: ")
    assert len(done.err.splitlines()) == 1
    assert time.monotonic() - begin < 5


def test_as_a_process_it_leaves_nothing_on_stderr_and_ends_when_nobody_reads(servers: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "millstream.cli.main", "topics"]
    done = subprocess.run(
        [*command, "list", "-b", servers],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | {"PYTHONDEVMODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    reader, writer = os.pipe()
    os.close(reader)
    topics("create", servers, "unread")
    unread = subprocess.run(
        [*command, "list", "-b", servers], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (unread.returncode, unread.stderr) == (141, b"")
    topics("delete", servers, "unread")


def test_an_ipv6_address_is_shown_with_brackets() -> None:
    done = topics("list", "[::1]:9", "--timeout", "0.3")
    assert done.code == 1
    assert "[::1]:9" in done.err
    assert "::1:9" not in done.err
