"""`millstream produce` with a real broker: what is stored, what it says, and how it ends."""

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kits.client.our_writer import java_partition, read_all
from kits.process.cli_kit import Outcome, millstream
from millstream.testing.broker_thread import BrokerThread

COMMAND = (sys.executable, "-m", "millstream.cli.main", "produce")


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.bootstrap_servers


def topic(servers: str, name: str, partitions: int = 1) -> None:
    options = ["--bootstrap-server", servers, "--partitions", str(partitions)]
    assert millstream("topics", "create", name, *options).code == 0


def produce(servers: str, name: str, text: bytes, *options: str) -> Outcome:
    """In a process of its own, as it reads stdin."""
    done = subprocess.run(
        [*COMMAND, name, "--bootstrap-server", servers, *options],
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
    assert produce(servers, "lines", b"x").err == "1 record written to lines\n"


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
        "1 record written to broken",
    ]
    assert [one.value for one in read_all(servers, "broken", 1, 1)[0]] == [b"1"]


def test_what_cannot_be_done_is_said(servers: str) -> None:
    topic(servers, "said")
    done = produce(servers, "nowhere", b"x\n")
    assert done.code == 1
    assert done.err.splitlines() == [
        "millstream: topic 'nowhere' does not exist; create it, or correct the name",
        "0 records written to nowhere",
    ]
    done = produce(servers, "said", b"x\n", "--partition", "1")
    assert (done.code, "topic 'said' has no partition 1" in done.err) == (1, True)
    assert produce(servers, "nowhere", b"").code == 1, "an empty input is no reason to be silent"
    assert produce(servers, "said", b"", "--compression", "rar").code == 2
    assert produce(servers, "said", b"", "--key-separator", "").code == 2


def test_lines_before_one_that_is_too_long_are_written(servers: str) -> None:
    topic(servers, "long")
    for number, end in ((3, b"\nafter\n"), (3, b"")):
        done = produce(servers, "long", b"one\ntwo\n" + b"x" * 3_000_000 + end)
        assert done.code == 1
        first, second = done.err.splitlines()
        assert first.startswith(
            f"millstream: line {number} is too long: a record can have at most 10"
        )
        assert second == "2 records written to long"


def test_a_line_that_the_broker_refuses_is_named(servers: str) -> None:
    options = ["-b", servers, "--config", "max.message.bytes=5000"]
    assert millstream("topics", "create", "small", *options).code == 0
    lines = [b"%d" % row for row in range(1000)]
    lines[700] = b"x" * 20_000
    done = produce(servers, "small", b"\n".join(lines))
    assert done.code == 1
    first, second = done.err.splitlines()
    assert first.startswith("millstream: line 701: small-0, row 700 of write 1")
    assert second == "999 records written to small"


def test_an_endless_line_is_not_read_to_its_end(servers: str) -> None:
    topic(servers, "endless")
    with subprocess.Popen(
        [*COMMAND, "endless", "-b", servers], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        fed = 0
        with suppress(BrokenPipeError):
            while fed < 100_000_000:
                fed += process.stdin.write(b"x" * 65536)
                process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        assert process.wait(30) == 1
        assert b"line 1 is too long" in process.stderr.read()
    assert fed < 10_000_000


def test_ctrl_c_tells_how_many(servers: str) -> None:
    topic(servers, "ended")
    with subprocess.Popen(
        [*COMMAND, "ended", "-b", servers], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\nhalf")
        process.stdin.flush()
        read_all(servers, "ended", 1, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b"2 records written to ended\n"


def test_separators_may_be_escaped_or_no_text(servers: str) -> None:
    topic(servers, "tabs")
    for row, (given, meant) in enumerate(
        ((r"\t", b"\t"), (r"\xff\\", b"\xff\\"), ("\udcfe", b"\xfe"))
    ):
        done = produce(servers, "tabs", b"k" + meant + b"v\n", "--key-separator", given)
        assert (done.code, done.err) == (0, "1 record written to tabs\n")
        found = read_all(servers, "tabs", 1, row + 1)[0][row]
        assert (found.key, found.value) == (b"k", b"v")
    escape = r"unknown escape; use \t, \r, \xNN, or \\ for a backslash"
    line_break = "must not contain a line break: records are lines"
    for given, reason in (("\\", escape), (r"\q", escape), (r"\n", line_break)):
        refused = produce(servers, "tabs", b"", "--key-separator", given)
        assert refused.code == 2
        assert refused.err == f"millstream: --key-separator '{given}': {reason}\n"


def test_an_input_that_cannot_be_read_is_one_line(servers: str) -> None:
    topic(servers, "closed")
    for redirection, told in (("<&-", "input is closed"), ("0> /dev/null", "input: Bad file")):
        command = f"{shlex.join(COMMAND)} closed -b {servers} {redirection}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, check=False, timeout=60, text=True
        )
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert told in done.stderr.splitlines()[0]


def test_without_a_broker_it_ends_in_the_named_time() -> None:
    begun_s = time.monotonic()
    done = produce("127.0.0.1:1", "t", b"x\n", "--timeout", "1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err
    assert time.monotonic() - begun_s < 10
