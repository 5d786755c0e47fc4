"""Settings of one start of `millstream up`: what is taken, what wins, where metrics are served."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.cli.brokers_on_disk import BrokerDirectory
from millstream.cli.supervisor import Launch
from millstream.cli.up_settings import BadOverride, launches, parse_overrides


def launched(
    tmp_path: Path,
    *,
    in_file: str = "",
    given: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    is_quiet: bool = False,
    brokers: int = 3,
) -> list[Launch]:
    directories = [BrokerDirectory(tmp_path, number + 1) for number in range(brokers)]
    for one in directories:
        one.path.mkdir(parents=True, exist_ok=True)
        one.settings_file.write_text(in_file)
    return launches(directories, given or {}, environment or {}, is_quiet=is_quiet)


def ports(found: list[Launch]) -> list[int | None]:
    return [one.metrics_port for one in found]


def test_a_setting_is_a_key_and_a_value() -> None:
    given = ["log.retention.ms=1000", "auto.create.topics.enable = false", "broker.rack=a=b"]
    assert parse_overrides(given, brokers=3) == {
        "log.retention.ms": "1000",
        "auto.create.topics.enable": "false",
        "broker.rack": "a=b",
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["log.retention.ms"], "--config log.retention.ms: must be KEY=VALUE"),
        (["=1"], "--config =1: must be KEY=VALUE"),
        (["log.retention.ms=soon"], "invalid value 'soon' for log.retention.ms: it must be"),
        (["retention.ms=1"], "unknown broker setting; did you mean log.retention.ms?"),
        (["no.such.thing.at.all=1"], "--config no.such.thing.at.all: unknown broker setting"),
        (["num.io.threads=3"], "--config num.io.threads has no effect here: "),
        (["transaction.partition.verification.enable=true"], "has no effect yet: transactions"),
        (
            ["listeners=PLAINTEXT://:1"],
            "--config listeners cannot be set for all brokers: use --host and",
        ),
        (["log.dirs=/x"], "--config log.dirs cannot be set for all brokers: use --data-dir"),
        (["broker.id=4"], "--config broker.id cannot be set for all brokers"),
        (["advertised.listeners=PLAINTEXT://a:1"], "cannot be the same for 3 brokers: set it"),
        (["log.retention.ms=1", "log.retention.ms=2"], "--config log.retention.ms is given twice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(given: list[str], told: str) -> None:
    with pytest.raises(BadOverride) as refused:
        parse_overrides(given, brokers=3)
    assert told in str(refused.value)
    assert "--config" in str(refused.value)


def test_the_only_broker_can_be_advertised() -> None:
    given = ["advertised.listeners=PLAINTEXT://a:1"]
    assert parse_overrides(given, brokers=1) == {"advertised.listeners": "PLAINTEXT://a:1"}


def test_overrides_reach_every_broker_as_its_environment(tmp_path: Path) -> None:
    found = launched(tmp_path, given={"log.retention.ms": "1"}, in_file="log.retention.ms=2\n")
    assert [one.environment for one in found] == [{"MILLSTREAM_LOG_RETENTION_MS": "1"}] * 3


def test_metrics_have_ports_in_a_row_unless_a_setting_says(tmp_path: Path) -> None:
    assert ports(launched(tmp_path)) == [9404, 9405, 9406]
    assert ports(launched(tmp_path, in_file="metrics.port=7\n")) == [None] * 3
    assert ports(launched(tmp_path, in_file="metrics.port=-1\n")) == [None] * 3
    assert ports(launched(tmp_path, given={"metrics.port": "-1"})) == [None] * 3
    assert ports(launched(tmp_path, environment={"MILLSTREAM_METRICS_PORT": "0"})) == [None] * 3


def test_metrics_keep_clear_of_the_ports_of_all_brokers(tmp_path: Path) -> None:
    """Whichever is faster: a broker that finds its port taken does not start."""
    listeners = "listeners=A://127.0.0.1:9403, B://[::1]:9404,C://:9406\n"
    assert ports(launched(tmp_path, in_file=listeners)) == [9405, 9407, 9408]


@pytest.mark.parametrize("way", ["option", "environment"])
def test_one_metrics_port_for_several_brokers_is_the_first_ones(tmp_path: Path, way: str) -> None:
    found = (
        launched(tmp_path, given={"metrics.port": "7000"}, in_file="metrics.port=5\n")
        if way == "option"
        else launched(tmp_path, environment={"MILLSTREAM_METRICS_PORT": "7000"})
    )
    told = [one.environment["MILLSTREAM_METRICS_PORT"] for one in found]
    assert told == ["7000", "7001", "7002"]
    assert ports(found) == [None] * 3


@pytest.mark.parametrize(
    ("in_file", "given", "environment", "level"),
    [
        ("", {}, {}, "WARN"),
        ("log.level=DEBUG\n", {}, {}, None),
        ("", {"log.level": "INFO"}, {}, "INFO"),
        ("", {}, {"MILLSTREAM_LOG_LEVEL": "INFO"}, None),
    ],
)
def test_a_terminal_gets_warnings_unless_more_is_asked_for(
    tmp_path: Path,
    in_file: str,
    given: dict[str, str],
    environment: dict[str, str],
    level: str | None,
) -> None:
    (one,) = launched(
        tmp_path,
        in_file=in_file,
        given=given,
        environment=environment,
        is_quiet=True,
        brokers=1,
    )
    assert one.environment.get("MILLSTREAM_LOG_LEVEL") == level
