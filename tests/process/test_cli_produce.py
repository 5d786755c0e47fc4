"""`millstream produce` with a real broker: what is stored, what it says, and how it ends."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cli_kit import Outcome, millstream
from millstream.testing.broker_thread import BrokerThread
from our_writer import java_partition, read_all


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.bootstrap_servers


def topic(servers: str, name: str, partitions: int = 1) -> None:
    options = ["--bootstrap-server", servers, "--partitions", str(partitions)]
    assert millstream("topics", "create", name, *options).code == 0


def produce(servers: str, name: str, text: bytes, *options: str) -> Outcome:
    """In a process of its own, as it reads stdin."""
    command = [sys.executable, "-m", "millstream.cli.main", "produce", name]
    done = subprocess.run(
        [*command, "--bootstrap-server", servers, *options],
        input=text,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_lines_become_records(servers: str) -> None:
    topic(servers, "lines")
    lines = [b"one", b"", b"three \xff", *(b"%d" % row for row in range(200_000)), b"last"]
    done = produce(servers, "lines", b"\n".join(lines), "--compression", "zstd")
    count = len(lines)
    assert (done.code, done.out, done.err) == (0, "", f"{count} records written to lines\n")
    (found,) = read_all(servers, "lines", 1, count)
    assert [one.value for one in found] == lines
    assert {one.key for one in found} == {None}
    assert produce(servers, "lines", b"").err == "0 records written to lines\n"


def test_keys_and_partitions(servers: str) -> None:
    topic(servers, "keys", 4)
    text = b"".join(b"k%d::v%d::w\n" % (row % 7, row) for row in range(100))
    assert produce(servers, "keys", text, "--key-separator", "::").code == 0
    found = read_all(servers, "keys", 4, 100)
    for index, part in enumerate(found):
        assert all(java_partition(one.key or b"", 4) == index for one in part)
    assert found[java_partition(b"k1", 4)][0].value in (b"v0::w", b"v1::w", b"v2::w", b"v3::w")
    assert produce(servers, "keys", b"x\n", "--partition", "3").code == 0
    assert len(read_all(servers, "keys", 4, 101)[3]) == len(found[3]) + 1


def test_a_line_without_key_stops_it_and_the_count_is_honest(servers: str) -> None:
    topic(servers, "broken")
    done = produce(servers, "broken", b"a=1\nnothing\nb=2\n", "--key-separator", "=")
    assert done.code == 1
    assert done.err.splitlines() == [
        "millstream: line 2 has no key separator '='",
        "0 records written to broken",
    ]


def test_what_cannot_be_done_is_said(servers: str) -> None:
    topic(servers, "said")
    done = produce(servers, "nowhere", b"x\n")
    assert done.code == 1
    assert done.err.splitlines() == [
        "millstream: there is no topic 'nowhere'; create it, or correct the name",
        "0 records written to nowhere",
    ]
    done = produce(servers, "said", b"x\n", "--partition", "1")
    assert (done.code, "row 0: topic 'said' has partitions 0 to 0, not 1" in done.err) == (1, True)
    done = produce(servers, "said", b"x" * 3_000_000)
    assert done.code == 1
    assert "max.request.size" in done.err
    assert done.err.endswith("0 records written to said\n")
    assert produce(servers, "said", b"", "--compression", "rar").code == 2
    assert produce(servers, "said", b"", "--key-separator", "").code == 2


def test_without_a_broker_it_ends_in_the_named_time() -> None:
    begun_s = time.monotonic()
    done = produce("127.0.0.1:1", "t", b"x\n", "--timeout", "1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err
    assert time.monotonic() - begun_s < 10
