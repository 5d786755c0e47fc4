"""Options of the commands that talk to a cluster: what cannot be is refused in one line."""

import pytest

from kits.process.cli_kit import millstream

COMMANDS = (("topics", "list"), ("produce", "t"), ("consume", "t"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("timeout", ["nan", "inf", "-inf", "0", "-1", "1e30", "soon", ""])
def test_times_that_cannot_be(command: tuple[str, ...], timeout: str) -> None:
    done = millstream(*command, "--timeout", timeout)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        f"millstream: --timeout {timeout}: must be a number of seconds between 0.001 and"
    )
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "create", "t", "--partitions", "99999999999"),
        ("topics", "create", "t", "--partitions", "-2"),
        ("topics", "create", "t", "--replication-factor", "99999"),
        ("produce", "t", "--partition", "99999999999"),
        ("produce", "t", "-p", "-1"),
        ("consume", "t", "-p", "2147483648"),
        ("consume", "t", "-p", "0", "--offset", "9223372036854775808"),
        ("consume", "t", "-p", "0", "--offset", "many"),
        ("consume", "t", "--timestamp", "9223372036854775808"),
        ("consume", "t", "-n", "9223372036854775808"),
    ],
)
def test_numbers_that_the_protocol_has_no_room_for(arguments: tuple[str, ...]) -> None:
    done = millstream(*arguments)
    assert (done.code, done.out) == (2, "")
    assert f" {arguments[-1]}: must be an integer between " in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", [("topics", "create"), ("produce",), ("consume",)])
def test_a_name_that_is_no_text(command: tuple[str, ...]) -> None:
    done = millstream(*command, "\udcff")
    assert (done.code, done.out) == (2, "")
    assert "not valid UTF-8" in done.err


def test_produce_and_consume_call_the_topic_the_same() -> None:
    helps = [millstream(name, "--help").out for name in ("produce", "consume")]
    for text in helps:
        assert "TOPIC" in text
        assert "Name of the topic." in text
        assert "-p" in text
    assert "none|gzip|snappy|lz4|zstd" in helps[0]
