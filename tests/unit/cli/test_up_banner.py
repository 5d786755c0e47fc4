"""What `millstream up` says on a terminal, and how it explains a start that failed."""

import errno
from pathlib import Path

import pytest

from millstream.broker.start_failure import Cause, StartFailure, failure_of, parse
from millstream.cli.banner import banner, command_name
from millstream.cli.brokers_on_disk import BrokerRunning
from millstream.cli.supervisor import Ready, StartFailed
from millstream.cli.up_failure import explanation
from millstream.coordination.keeper.journal import KeeperDataLocked
from millstream.model.config.errors import InvalidConfig
from millstream.model.errors import LogDirectoryLocked, StorageFailed


def test_four_lines_with_addresses_data_metrics_and_what_to_type_next() -> None:
    brokers = [Ready([f"127.0.0.1:{9092 + n}"], f"127.0.0.1:{9404 + n}") for n in range(3)]
    told = banner(brokers, Path("/data"), command="millstream", is_new=True)
    assert told.splitlines() == [
        "ready:    127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094",
        "data:     /data",
        "metrics:  http://127.0.0.1:9404/metrics, also on ports 9405, 9406",
        "next:     millstream topics create greetings    (in another terminal; Ctrl-C here stops"
        " all)",
    ]


def test_an_address_that_our_commands_do_not_assume_is_in_what_to_type() -> None:
    brokers = [Ready(["127.0.0.1:41000"], None)]
    *_, metrics, after = banner(
        brokers, Path("/data"), command="bin/millstream", is_new=False
    ).splitlines()
    assert "not served" in metrics
    assert after.startswith("next:     bin/millstream topics list -b 127.0.0.1:41000 ")


@pytest.mark.parametrize(
    ("ports", "told"),
    [
        ([1], ""),
        ([1, 2], ", also on port 2"),
        ([1, 3, 4, 9], ", also on ports 3, 4, 9"),
        ([1, 2, 3, 4, 9], ", also on ports 2-4, 9"),
    ],
)
def test_many_metrics_ports_are_short(ports: list[int], told: str) -> None:
    brokers = [Ready([f"h:{n}"], f"h:{port}") for n, port in enumerate(ports)]
    lines = banner(brokers, Path("/d"), command="millstream", is_new=True).splitlines()
    assert lines[2] == f"metrics:  http://h:1/metrics{told}"


def test_the_command_is_told_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "millstream"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_name(str(program)) == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_name(str(program)) == "millstream"
    assert command_name("/x/millstream/__main__.py") == "python -m millstream"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.EADDRINUSE, "PLAINTEXT://h:1: Address already in use"), "port-taken"),
        (OSError(errno.EADDRNOTAVAIL, "PLAINTEXT://h:1: Cannot assign"), "address"),
        (OSError(errno.EACCES, "PLAINTEXT://h:80: Permission denied"), "privileged-port"),
        (PermissionError(errno.EACCES, "Permission denied", "/data"), "permission"),
        (OSError(errno.EROFS, "Read-only file system", "/data"), "permission"),
        (OSError(errno.ENOSPC, "No space left on device", "/data"), "disk-full"),
        (LogDirectoryLocked("/data is in use"), "in-use"),
        (StorageFailed("/data", "Permission denied"), "directory"),
        (InvalidConfig("line 1: no"), "setting"),
        (OSError("without a number"), "other"),
    ],
)
def test_a_failure_survives_its_line(error: Exception, cause: str) -> None:
    told = failure_of(error)
    assert told.cause == cause
    assert "Errno" not in told.reason
    assert parse(told.line()) == told


def test_a_failure_is_one_line_and_other_lines_are_none() -> None:
    told = failure_of(InvalidConfig("one\nready: two"))
    assert told.line() == "failed: setting one ready: two\n"
    assert parse("ready: 127.0.0.1:1\n") is None
    assert parse("failed: of-a-later-version why") == StartFailure(Cause.OTHER, "why")


@pytest.mark.parametrize("cause", [one for one in Cause if one is not Cause.OTHER])
def test_every_known_cause_has_a_hint_after_it(cause: Cause) -> None:
    reason, hint = explanation(StartFailed(2, 1, StartFailure(cause, "why")))
    assert reason == "broker 2 did not start: why"
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("error", [BrokerRunning("runs, pid 7"), KeeperDataLocked("in use")])
def test_a_directory_in_use_has_its_hint(error: Exception) -> None:
    reason, hint = explanation(error, prefix="so: ")
    assert reason == f"so: {error}"
    assert "--data-dir" in hint


@pytest.mark.parametrize(
    ("code", "told"), [(70, "exit code 70"), (-9, "signal 9"), (None, "not ready after 120 s")]
)
def test_a_broker_that_could_not_tell_why_is_told_by_its_end(code: int | None, told: str) -> None:
    assert explanation(StartFailed(1, code)) == [f"broker 1 did not start: {told}"]
